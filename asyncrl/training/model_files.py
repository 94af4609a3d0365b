"""A model directory that is written by all ranks of a trainer. Invariant: each tensor of the hub's
layout is whole in one file, so others read the directory; no rank has more than its files, and one
tensor beside them.

The tensors are cut, in the order of the architecture, into as many files as ranks write, or more.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.adapters import adapted, merged
from asyncrl.training.checkpoint_names import CheckpointNames
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
    shape = staging.shape_of(model, rank.computes(model))
    names = CheckpointNames(shape)
    sizes = {name: p.numel() * p.element_size() for name, p in shape.named_parameters()}
    cut = cut_files(
        [sum(map(sizes.__getitem__, g)) for g in names.groups], len(rank.writers), SHARD
    )
    file_of = [name for name, groups in cut.items() for _ in groups]
    group_of = {own: place for place, group in enumerate(names.groups) for own in group}
    mine = [rank.writers[n % len(rank.writers)] == rank.index for n in range(len(cut))]
    files = {name: dict[str, Tensor]() for name, own in zip(cut, mine, strict=True) if own}
    held = dict[str, Tensor]()
    for name, whole in _whole(rank, model, weights):
        place = group_of[name]
        if file_of[place] not in files:
            continue
        held[name] = whole
        if all(each in held for each in names.groups[place]):
            for stored, tensor in names.of_group(place, held):
                rounded = tensor if dtype is None else tensor.to(dtype)
                files[file_of[place]][stored] = staging.copied(rounded)
            held.clear()
    first = next(iter(cut))
    kept = model.state_dict().keys() - {name for name, _ in model.named_parameters()}
    buffers = {names.renamed(n): b for n, b in model.named_buffers() if n in kept}
    if first in files:
        files[first].update((name, staging.copied(buffer)) for name, buffer in buffers.items())
    meta = {name: p.to("meta") for name, p in shape.named_parameters()}
    every = {
        stored: file_of[place]
        for place in range(len(names.groups))
        for stored, _ in names.of_group(place, meta)
    }
    return StagedModel(
        files, every | dict.fromkeys(buffers, first), shape, dtype or rank.computes(model)
    )


def write_tensors(folder: Path, staged: StagedModel) -> list[Path]:
    """Write this rank's files."""
    for name, tensors in staged.files.items():
        save_file(dict(tensors), folder / name, metadata={"format": "pt"})
    return [folder / name for name in staged.files]


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
