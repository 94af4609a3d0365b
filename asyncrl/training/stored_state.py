"""The trainer's stored state of a checkpoint, by rows. Invariant: a rank reads its own rows of a
tensor, however many ranks wrote it.

A file of state has whole tensors, or rows of them: then its header says which (`ROWS`), as JSON:
the first row of each tensor, and how many the whole tensor has. Nothing is pickled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from asyncrl.training.adapters import ADAPTERS
from asyncrl.training.checkpoint_index import CheckpointError, Scalars, scalars
from asyncrl.training.stored_model import TYPES, read_rows
from asyncrl.training.stored_weights import StoredWeight, stored_weights

TENSORS = "trainer.safetensors"
"""The file of a trainer of one rank."""
OF_ADAPTERS = "adapters/"
"""The beginning of the names of adapters, which are in a file of their own."""
ROWS = "rows"
"""The key in a header for the places of its tensors."""


class StoredRows(Protocol):
    """A stored tensor."""

    shape: torch.Size
    dtype: torch.dtype

    def rows(self, first: int, count: int) -> Tensor:
        """Some of its rows, in memory of their own. All ranks call this for the same tensors in the
        same order, if they have rank 0's. Raises CheckpointError."""
        ...


class StoredState(NamedTuple):
    """Scalars of a checkpoint, and every tensor of the trainer's state, by name. `path` is for
    messages."""

    path: Path
    scalars: Scalars
    tensors: Mapping[str, StoredRows]


class StoredPart(NamedTuple):
    """Some rows of a tensor of `of` rows, from row `first` on; all of it where `of` is -1."""

    tensor: Tensor
    first: int = 0
    of: int = -1


class _RowsOfFiles:
    """A tensor of which files have parts, each with its first row."""

    def __init__(self, name: str, parts: list[tuple[int, int, StoredWeight]]) -> None:
        self._name, self._parts = name, sorted(parts, key=lambda part: part[0])
        _, of, weight = self._parts[0]
        self.dtype = TYPES[weight.form[0]]
        shape = weight.form[1]
        self.shape = torch.Size(shape if of < 0 else (of, *shape[1:]))

    @property
    def whole(self) -> bool:
        """True if the parts are all of it."""
        if self._parts[0][1] < 0:
            return len(self._parts) == 1
        end = 0
        for first, of, weight in self._parts:
            if first != end or of != self.shape[0] or weight.form[1][1:] != self.shape[1:]:
                return False
            end += weight.form[1][0]
        return end == self.shape[0]

    def rows(self, first: int, count: int) -> Tensor:
        """Some rows, as in `StoredRows`."""
        scalar = not self.shape
        found = torch.empty(1 if scalar else (count, *self.shape[1:]), dtype=self.dtype)
        try:
            for start, _, weight in self._parts:
                a = max(first, start)
                b = min(first + count, start + (1 if scalar else weight.form[1][0]))
                if a < b:
                    into = found[a - first : b - first]
                    read_rows(weight, (a - start) * into[0].numel(), into, self.dtype)
        except OSError as error:
            file = self._parts[0][2].file
            raise _unreadable(file.parent, file.name, error) from error
        return found.view(()) if scalar else found


def whole_of(tensor: StoredRows | Tensor) -> Tensor:
    """A stored tensor, in memory."""
    if isinstance(tensor, Tensor):
        return tensor
    return tensor.rows(0, tensor.shape[0] if tensor.shape else 1)


def read_state(path: Path) -> StoredState:
    """Read what the checkpoint at `path` has, and no tensor. Raises CheckpointError."""
    stored_scalars = scalars(path)
    found = defaultdict[str, list[tuple[int, int, StoredWeight]]](list)
    files = sorted(path.glob("trainer*.safetensors")) or [path / TENSORS]
    if stored_scalars.base:
        files.append(path / ADAPTERS)
    for file in files:
        prefix = OF_ADAPTERS if file.name == ADAPTERS else ""
        try:
            with safe_open(file, framework="numpy") as opened:
                header: dict[str, str] = opened.metadata() or {}
            rows = msgspec.json.decode(header.get(ROWS, "{}"), type=dict[str, tuple[int, int]])
            for weight in stored_weights(file):
                first, of = rows.get(weight.name, (0, -1))
                if weight.form[0] not in TYPES:
                    raise SafetensorError(f"{weight.name} is of the type {weight.form[0]}")
                found[prefix + weight.name].append((first, of, weight))
        except (OSError, SafetensorError, msgspec.MsgspecError) as error:
            raise _unreadable(path, file.name, error) from error
    tensors = {name: _RowsOfFiles(name, parts) for name, parts in found.items()}
    for name, tensor in tensors.items():
        if not tensor.whole:
            raise CheckpointError(
                f"training cannot resume from {path}, because a file of its state is missing, or "
                f"of another checkpoint: rows of {name} are in none; put the file back, or remove "
                "the checkpoint"
            )
    return StoredState(path, stored_scalars, tensors)


def write_state(folder: Path, parts: Mapping[str, StoredPart], index: int, writers: int) -> Path:
    """Write the state, or the rows of it that are the `index`th of `writers` ranks'."""
    name = TENSORS if writers == 1 else f"trainer-{index + 1:05d}-of-{writers:05d}.safetensors"
    rows = {name: (part.first, part.of) for name, part in parts.items() if part.of >= 0}
    tensors = {name: part.tensor for name, part in parts.items()}
    header = {ROWS: msgspec.json.encode(rows).decode()} if rows else None
    save_file(tensors, folder / name, metadata=header)
    return folder / name


def _unreadable(path: Path, name: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"training cannot resume from {path}, because {name} cannot be read: {error}"
    )
