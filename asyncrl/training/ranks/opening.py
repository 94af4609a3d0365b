"""A model as one of several ranks opens it. Invariant: no rank has the whole model in memory, but
where its files do not have its weights as they are."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from transformers import PreTrainedModel

from asyncrl.training.models import model_without_memory
from asyncrl.training.ranks.shared import GivenModel
from asyncrl.training.stored_model import ModelRows, rows_of

logger = logging.getLogger(__name__)


def opened_by_rank(
    path: Path, dtype: torch.dtype, index: int, device: torch.device, *, given: bool
) -> tuple[PreTrainedModel, ModelRows]:
    """The model at `path` without memory, and its weights by rows, for rank `index`; those of rank
    0, if they are `given`: others cannot read them. Raises ModelError."""
    reads, rows = not (given and index), None
    model = model_without_memory(path, dtype, stored=reads)
    if reads:
        rows, why = rows_of(path, model)
        if why:
            logger.info("the whole model is in memory while the trainer starts: %s", why)
    return model, GivenModel(rows, model, device) if given or rows is None else rows
