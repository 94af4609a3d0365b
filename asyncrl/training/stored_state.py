"""The trainer's stored state of a checkpoint, and its transfer to ranks that cannot read it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asyncrl.training.checkpoint_index import CheckpointError, Scalars, scalars
from asyncrl.training.ranks.shared import SharedTensors, share

TENSORS = "trainer.safetensors"


class StoredState(NamedTuple):
    """Scalars of a checkpoint, and every tensor of the trainer's state, by name. `path` is for
    messages."""

    path: Path
    scalars: Scalars
    tensors: dict[str, Tensor]


def read_state(path: Path) -> StoredState:
    """Read the state of the checkpoint at `path`. Raises CheckpointError."""
    stored_scalars = scalars(path)
    try:
        with safe_open(path / TENSORS, framework="pt") as stored:
            names = stored.keys()  # no mapping: it cannot be iterated over itself
            tensors: dict[str, Tensor] = {name: stored.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"training cannot resume from {path}, because {TENSORS} cannot be read: {error}"
        ) from error
    return StoredState(path, stored_scalars, tensors)


def share_state(state: StoredState | None, device: torch.device) -> StoredState | None:
    """Send rank 0's state to every rank, in host memory; None where it has none. All ranks of the
    default group call this, and `device` is theirs."""
    sent = None
    if state is not None:
        encoded = msgspec.json.encode((str(state.path), state.scalars))
        sent = SharedTensors(encoded, state.tensors)
    received = share(sent, device)
    if not received.said:
        return None
    path, of_itself = msgspec.json.decode(received.said, type=tuple[str, Scalars])
    return StoredState(Path(path), of_itself, dict(received.tensors))
