"""The files of a model directory, by the parameters of a model. Invariant: the same for all ranks,
and for every copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property

import torch
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.balance import own_biases
from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.training.models import model_with
from asyncrl.training.stored_model import WHOLE


class ModelLayout:
    """The files that `writers` ranks write of a `model`, of about `most` bytes at most. `shape` is
    the model without adapters and without memory, as it computes, in `dtype`."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, writers: int, most: int) -> None:
        self.shape = model_with({}, model.config, dtype)
        own_biases(self.shape)
        if model.can_generate():
            self.shape.generation_config = copy.deepcopy(model.generation_config)
        self.names = CheckpointNames(self.shape)
        sizes = {name: p.nbytes for name, p in self.shape.named_parameters()}
        of_groups = [sum(sizes[name] for name in group) for group in self.names.groups]
        self._cut = cut_files(of_groups, writers, most)
        self._file = [name for name, groups in self._cut.items() for _ in groups]
        self._group = {own: at for at, group in enumerate(self.names.groups) for own in group}

    @property
    def files(self) -> list[str]:
        """Their names, in order."""
        return list(self._cut)

    def place(self, parameter: str) -> tuple[int, str]:
        """The group of `CheckpointNames.groups` that a parameter is in, and its file."""
        group = self._group[parameter]
        return group, self._file[group]

    @cached_property
    def every(self) -> dict[str, str]:
        """The file of each tensor of the checkpoint that parameters make."""
        meta = {name: p.to("meta") for name, p in self.shape.named_parameters()}
        return {
            stored: self._file[group]
            for group in range(len(self.names.groups))
            for stored, _ in self.names.of_group(group, meta)
        }


def cut_files(sizes: Sequence[int], writers: int, most: int) -> dict[str, range]:
    """Names of files, each with the places of the tensors of these bytes that it has: one file for
    each writer, of about as many bytes, or more files, of about `most` bytes.

    >>> cut_files([4, 1, 1, 2], writers=2, most=100)
    {'model-00001-of-00002.safetensors': range(0, 1), \
'model-00002-of-00002.safetensors': range(1, 4)}
    >>> cut_files([4, 1, 1, 2], writers=1, most=100)
    {'model.safetensors': range(0, 4)}
    """
    total, before = sum(sizes), 0
    count = max(writers, -(-total // most))
    starts = [0]
    for place, size in enumerate(sizes):
        if before * count >= len(starts) * total:
            starts.append(place)
        before += size
    ranges = list(map(range, starts, [*starts[1:], len(sizes)]))
    count = len(ranges)
    if count == 1:
        return {WHOLE: ranges[0]}
    return {
        f"model-{number:05d}-of-{count:05d}.safetensors": places
        for number, places in enumerate(ranges, start=1)
    }
