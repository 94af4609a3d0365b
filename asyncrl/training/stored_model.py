"""The weights of a model, by rows of its parameters, from a model directory. Invariant: reading
takes `PIECE_BYTES` of memory beside the rows, whatever the size of a weight or a file.

A rank has some rows of each parameter, and reads no others. A checkpoint has the experts of a layer
as single tensors, which are one parameter of the model: where each lies in it is transformers' own
conversion (`CheckpointNames.layout`), so a rank reads its experts alone. Files are read, and not
mapped: pages of a mapped file count as memory of the process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from asyncrl.escape import escaped
from asyncrl.files import JSON_BYTES, open_regular, read_regular
from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.training.models import (
    ModelError,
    ShardIndex,
    all_finite,
    load_model,
    not_all_finite,
)
from asyncrl.training.stored_weights import StoredWeight, stored_weights

PIECE_BYTES = 2**21
"""Bytes that are read at a time, at least a row."""
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types of numbers that are read, by their names in safetensors."""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class ModelRows(Protocol):
    """The weights of a model, by rows."""

    def fill(self, name: str, rows: Tensor, first: int) -> None:
        """Fill `rows` (contiguous, in host memory) with rows of a parameter, or of a buffer, from
        row `first` on, rounded to the model's type. Raises ModelError."""
        ...


class StoredModel:
    """The weights of the model directory `path`, of which `model` has the shapes, without adapters.
    Raises ModelError where one is missing or has another shape, and NotCut."""

    def __init__(self, path: Path, model: PreTrainedModel) -> None:
        self._path = path
        stored = _stored(path)
        tensors = dict(_parameters_and_buffers(model))
        self._dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        self._cuts = defaultdict[str, list[_Cut]](list)
        names, missing = _StoredNames(model, stored), list[str]()
        for name, checkpoint_name, view in _layout(model):
            weight = names.find(name, checkpoint_name)
            if weight is None or weight.form[1] != tuple(view.shape):
                missing.append(checkpoint_name)
            elif not getattr(TYPES.get(weight.form[0]), "is_floating_point", False):
                raise NotCut(f"{escaped(checkpoint_name, 60)} is of the type {weight.form[0]}")
            else:
                self._cuts[name].append(_Cut(weight, view))
        if missing:
            raise ModelError(
                f"the weights in {path} are not complete: {min(missing)} and {len(missing) - 1} "
                "more are missing or have another shape"
            )

    def fill(self, name: str, rows: Tensor, first: int) -> None:
        """Fill rows from the files, as in `ModelRows`."""
        try:
            for cut in self._cuts[name]:
                cut.read(rows, first, self._dtypes[name])
        except OSError as error:
            raise ModelError(
                f"the weights in {self._path} cannot be read: {error.strerror or error}"
            ) from error
        if not all_finite(rows):
            raise not_all_finite(self._path, name)


class WholeModel:
    """The weights of a model that is in memory whole."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._tensors = dict(_parameters_and_buffers(model))

    def fill(self, name: str, rows: Tensor, first: int) -> None:
        """Fill rows with copies, as in `ModelRows`."""
        whole = self._tensors[name]
        rows.copy_(whole[first : first + len(rows)] if whole.dim() else whole)


class NotCut(Exception):
    """Raised for files that do not have each parameter, or cuts of it, as they are."""


def rows_of(path: Path, model: PreTrainedModel) -> tuple[ModelRows, str]:
    """The weights of a model directory, by rows, of a model of which `model` has the shapes; and
    why they have to be in memory whole, empty where they have not. Raises ModelError."""
    try:
        return StoredModel(path, model), ""
    except NotCut as reason:
        return WholeModel(load_model(path, model.dtype)), str(reason)


class _Cut:
    """A tensor of a checkpoint, and where its numbers lie in a parameter: `view` is of that, on no
    device."""

    def __init__(self, weight: StoredWeight, view: Tensor) -> None:
        base = view if view._base is None else view._base
        self._weight, self._shape, self._strides = weight, tuple(view.shape), view.stride()
        row = base.stride(0) if base.dim() else 1
        self._row, self._inside = divmod(int(view.storage_offset()), row)
        self._rows_too = view.dim() == base.dim() > 0  # its rows are those of the parameter
        self._stride = row

    def read(self, rows: Tensor, first: int, dtype: torch.dtype) -> None:
        """Read what is in these rows of the parameter, which are `first` and later ones."""
        last = first + (len(rows) if rows.dim() else 1)
        start, end = 0, self._shape[0] if self._rows_too else 1
        start, end = max(first - self._row, start), min(last - self._row, end)
        if start >= end:
            return
        at = (self._row + start - first) * self._stride + self._inside
        shape = (end - start, *self._shape[1:]) if self._rows_too else self._shape
        into = rows.as_strided(shape, self._strides, rows.storage_offset() + at)
        skipped = start * into[0].numel() if self._rows_too else 0
        read_rows(self._weight, skipped, into.view(1) if not shape else into, dtype)


def read_rows(weight: StoredWeight, skipped: int, into: Tensor, dtype: torch.dtype) -> None:
    """Read the numbers of a weight after those that are skipped into a tensor of one dimension or
    more, rounded to `dtype`. Raises OSError."""
    kind = TYPES[weight.form[0]]
    row = into[0].numel() * kind.itemsize
    most = max(1, PIECE_BYTES // max(1, row))
    direct = kind == into.dtype and into.is_contiguous() and kind.itemsize <= dtype.itemsize
    buffer = into if direct else torch.empty((min(most, len(into)), *into.shape[1:]), dtype=kind)
    with open_regular(weight.file) as file:
        file.seek(weight.start + skipped * kind.itemsize)
        for start in range(0, len(into), most):
            piece = into[start : start + most]
            read = piece if direct else buffer[: len(piece)]
            if file.readinto(read.view(-1).view(torch.uint8).numpy().data) != read.nbytes:
                raise OSError(f"{weight.file.name} ends too early")
            if not direct:
                piece.copy_(read.to(dtype))


class _StoredNames:
    """The stored tensors of parameters: by the names that the model is saved with, or without the
    prefix that a model without its output layer has not, or by older ones that loading renames."""

    def __init__(self, model: PreTrainedModel, stored: Mapping[str, StoredWeight]) -> None:
        self._stored, self._prefix = stored, f"{model.base_model_prefix}."
        self._same = defaultdict[int, set[str]](set)  # names of one tensor, which are tied
        self._ids = dict[str, int]()
        for name, tensor in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ):
            self._ids[name] = id(tensor)
            self._same[id(tensor)].add(name)
        self._renamed = dict(self._older(model))

    def find(self, name: str, checkpoint_name: str) -> StoredWeight | None:
        """The stored tensor of a parameter, or of a cut of it."""
        aliases = sorted(self._same[self._ids[name]])
        for each in (checkpoint_name, *aliases):
            bare = each.removeprefix(self._prefix)
            for known in (each, bare, self._prefix + bare):
                if found := self._stored.get(known):
                    return found
        return next((self._renamed[each] for each in aliases if each in self._renamed), None)

    def _older(self, model: PreTrainedModel) -> Iterator[tuple[str, StoredWeight]]:
        transforms: list[Any] = get_model_conversion_mapping(model) or []
        renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        meta, prefix = model.state_dict(), model.base_model_prefix
        for name, weight in self._stored.items():
            if name not in self._ids:
                yield rename_source_key(name, renamings, [], prefix, meta)[0], weight


def _layout(model: PreTrainedModel) -> Iterator[tuple[str, str, Tensor]]:
    """(name, checkpoint's name, view) as of `CheckpointNames.layout`, of buffers as well."""
    if getattr(model.config, "quantization_config", None):
        raise NotCut("the files are quantized")
    try:
        yield from CheckpointNames(model).layout()
    except ValueError as error:
        raise NotCut(f"{error} is not cut into the tensors of its checkpoint alone") from error
    for name, buffer in _buffers(model):
        yield name, name, torch.empty_like(buffer, device="meta")


def _parameters_and_buffers(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from _buffers(model)


def _buffers(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Buffers that files have."""
    kept = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in kept)


def _stored(path: Path) -> dict[str, StoredWeight]:
    """The weights of the files that transformers reads, by name. Raises ModelError."""
    files = [path / WHOLE]
    if not files[0].is_file() and (path / INDEX).is_file():
        index = msgspec.json.decode(read_regular(path / INDEX, JSON_BYTES), type=ShardIndex)
        files = [path / name for name in sorted(set(index.weight_map.values()))]
    elif not files[0].is_file():
        files = sorted(path.glob("*.safetensors"))
    found = dict[str, StoredWeight]()
    for file in files:
        if not file.is_file():
            raise ModelError(
                f"the weights in {path} are not complete: {file.name} is missing, which "
                f"{INDEX} names"
            )
        try:
            found |= {weight.name: weight for weight in stored_weights(file)}
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"the weights in {path} cannot be read, so they are truncated or belong to another "
                f"model: {file.name}: {escaped(str(error), 200)}"
            ) from error
    return found
