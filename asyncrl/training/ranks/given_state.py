"""The stored state of a checkpoint for ranks that cannot read it, from rank 0. Invariant: one
tensor at a time is whole on a rank."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.training.checkpoint_index import Scalars
from asyncrl.training.ranks.shared import send, told_by_rank_0
from asyncrl.training.stored_state import StoredRows, StoredState, whole_of

TYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
"""Types of tensors that are given, by their names."""
NAMES = {dtype: name for name, dtype in TYPES.items()}


class GivenRows:
    """A tensor that rank 0 has: one is whole on each rank's device for a moment."""

    def __init__(
        self, own: StoredRows | None, shape: torch.Size, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._own, self.shape, self.dtype, self._device = own, shape, dtype, device

    def rows(self, first: int, count: int) -> Tensor:
        """Some rows, as in `StoredRows`."""
        whole = torch.empty(self.shape, dtype=self.dtype, device=self._device)
        if self._own is not None:
            whole = whole_of(self._own).to(self._device)
        sent = send(whole)
        return (sent[first : first + count] if self.shape else sent).to("cpu", copy=True)


def share_state(state: StoredState | None, device: torch.device) -> StoredState | None:
    """Give every rank rank 0's state, of which each tensor is sent when it is read; None where it
    has none. All ranks of the default group call this, and `device` is theirs."""
    sent = b""
    if state is not None:
        listed = [(n, NAMES[t.dtype], tuple(t.shape)) for n, t in state.tensors.items()]
        sent = msgspec.json.encode((str(state.path), state.scalars, listed))
    received = told_by_rank_0(sent, device)
    if not received:
        return None
    kind = tuple[str, Scalars, list[tuple[str, str, tuple[int, ...]]]]
    path, of_itself, listed = msgspec.json.decode(received, type=kind)
    own = state.tensors if state is not None and dist.get_rank() == 0 else {}
    return StoredState(
        Path(path),
        of_itself,
        {
            name: GivenRows(own.get(name), torch.Size(shape), TYPES[dtype], device)
            for name, dtype, shape in listed
        },
    )
