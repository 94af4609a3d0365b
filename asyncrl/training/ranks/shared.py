"""Tensors that rank 0 gives every other rank, one at a time: those of other machines cannot read
its files. Invariant: bytes are sent as they are, and nothing is rounded."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.stored_model import ModelRows

PIECE_BYTES = 2**28
"""Bytes of a tensor that one broadcast has at most, each of which has a deadline."""


class GivenModel:
    """The weights that rank 0 has (`own`), by rows, for every rank: one tensor at a time is whole
    on each rank's device. `model` has the shapes. Satisfies `ModelRows`."""

    def __init__(self, own: ModelRows | None, model: PreTrainedModel, device: torch.device) -> None:
        self._own, self._device = own, device
        self._shapes = {
            name: (tensor.shape, tensor.dtype)
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }

    def fill(self, name: str, rows: Tensor, first: int) -> None:
        """Fill rows with rank 0's, as in `ModelRows`. All ranks call this for the same names."""
        shape, dtype = self._shapes[name]
        whole = torch.empty(shape, dtype=dtype)
        if self._own is not None:
            self._own.fill(name, whole, 0)
        sent = send(whole.to(self._device)).view(shape)
        rows.copy_(sent[first : first + len(rows)] if shape else sent)


def told_by_rank_0(said: bytes, device: torch.device) -> bytes:
    """Bytes of rank 0, for every rank. All ranks of the default group call this."""
    length = torch.tensor([len(said)], device=device)
    dist.broadcast(length, 0)
    sent = torch.empty(int(length), dtype=torch.uint8, device=device)
    if said and dist.get_rank() == 0:
        sent.copy_(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    return send(sent).cpu().numpy().tobytes()


def send(tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank; of the others the type, shape and device alone count."""
    sent = tensor.detach().contiguous()
    for piece in torch.split(sent.view(-1).view(torch.uint8), PIECE_BYTES):
        dist.broadcast(piece, 0)
    return sent
