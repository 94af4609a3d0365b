"""A model directory that is written by all ranks of a trainer. Invariant: each tensor of the hub's
layout is whole in one file, so others read the directory; no rank has more than its files, and one
tensor beside them.

The tensors are cut, in the order of the architecture, into as many files as ranks write, or more.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.config.paths import is_file
from asyncrl.training.adapters import adapted, merged
from asyncrl.training.ranks.rank import Rank
from asyncrl.training.staging import Staging
from asyncrl.training.stored_model import INDEX, WHOLE

SHARD = 5 * 10**9
"""Bytes of a weights file, at most about."""
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
)


class StagedModel(NamedTuple):
    """A copy of a rank's part of a model: `files`, the tensors of each of its files, of which
    `every` names all tensors with the file of each. `shape` is the model without memory, with
    weights of `dtype`."""

    files: Mapping[str, Mapping[str, Tensor]]
    every: Mapping[str, str]
    shape: PreTrainedModel
    dtype: torch.dtype


def stage_model(
    rank: Rank,
    model: PreTrainedModel,
    staging: Staging,
    weights: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> StagedModel:
    """Copy this rank's part of a model into host memory, with adapters merged: its own weights, or
    these of the parameters that learn; rounded to `dtype`, or as the model computes. Every rank
    takes part. The copy is complete at `Staging.end`."""
    layout = staging.layout(model, rank.computes(model), len(rank.writers), SHARD)
    first, *_ = layout.files
    files = {
        name: dict[str, Tensor]()
        for number, name in enumerate(layout.files)
        if rank.writers[number % len(rank.writers)] == rank.index
    }
    held = dict[str, Tensor]()
    for name, whole in _whole(rank, model, weights):
        group, file = layout.place(name)
        if file not in files:
            continue
        held[name] = whole
        if all(each in held for each in layout.names.groups[group]):
            for stored, tensor in layout.names.of_group(group, held):
                rounded = tensor if dtype is None else tensor.to(dtype)
                files[file][stored] = staging.copied(rounded)
            held.clear()
    kept = model.state_dict().keys() - {name for name, _ in model.named_parameters()}
    buffers = {layout.names.renamed(n): b for n, b in model.named_buffers() if n in kept}
    if first in files:
        files[first].update((name, staging.copied(buffer)) for name, buffer in buffers.items())
    every = layout.every | dict.fromkeys(buffers, first)
    return StagedModel(files, every, layout.shape, dtype or rank.computes(model))


def write_tensors(folder: Path, staged: StagedModel) -> list[Path]:
    """Write this rank's files."""
    for name, tensors in staged.files.items():
        save_file(dict(tensors), folder / name, metadata={"format": "pt"})
    return [folder / name for name in staged.files]


def of_model(file: Path) -> bool:
    """True for a file that a saved model may have.

    >>> of_model(Path("none/config.json")), of_model(Path("none"))
    (False, False)
    """
    names = {"config.json", "generation_config.json", INDEX, *TOKENIZER}
    return (file.name in names or file.suffix == ".safetensors") and is_file(file)


def write_rest(folder: Path, staged: StagedModel, tokenizer: Path) -> None:
    """Write what is no tensor: config.json, the index of several files, and the tokenizer's files,
    from its directory."""
    config = copy.deepcopy(staged.shape.config)
    config.dtype = staged.dtype
    config.architectures = [type(staged.shape).__name__]
    config.save_pretrained(folder)
    if staged.shape.can_generate():
        staged.shape.generation_config.save_pretrained(folder)
    if set(staged.every.values()) != {WHOLE}:
        sizes = {name: (folder / name).stat().st_size for name in set(staged.every.values())}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": staged.every}
        (folder / INDEX).write_text(json.dumps(index, indent=2))
    for name in TOKENIZER:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)


def _whole(
    rank: Rank, model: PreTrainedModel, weights: Mapping[str, Tensor] | None
) -> Iterator[tuple[str, Tensor]]:
    """Each weight, whole, by the model's names without adapters."""
    rank.let_go(model)
    if adapted(model):
        if weights is None:
            yield from merged(model, rank.as_computed)
            return
        with rank.stand_in(model).of(weights) as other:
            yield from merged(other, rank.as_computed)
        return
    own = dict(model.named_parameters()) | dict(weights or {})
    for name, tensor in own.items():
        yield name, rank.as_computed(tensor)
