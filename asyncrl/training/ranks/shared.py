"""Tensors that rank 0 gives every other rank, before there are shards of them: those of other
machines cannot read its files. Invariant: bytes are sent as they are, and nothing is rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.stored_model import ModelRows

PIECE_BYTES = 2**28
"""Bytes of a tensor that one broadcast has at most, each of which has a deadline."""
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


class SharedTensors(NamedTuple):
    """Tensors by name, and what is `said` about them."""

    said: bytes
    tensors: Mapping[str, Tensor]


class _Contents(msgspec.Struct, frozen=True):
    """Bytes that are said, and the name, type and shape of each tensor, in the order in which they
    come."""

    said: bytes
    tensors: list[tuple[str, str, tuple[int, ...]]]


def share(given: SharedTensors | None, device: torch.device) -> SharedTensors:
    """Give every rank what rank 0 was given, in host memory; nothing where that is None. All ranks
    of the default group call this, and `device` is what their collectives work on."""
    if dist.get_rank() == 0:
        own = given or SharedTensors(b"", {})
        listed = [
            (name, NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in own.tensors.items()
        ]
        _said(msgspec.msgpack.encode(_Contents(own.said, listed)), device)
        for tensor in own.tensors.values():
            send(tensor.to(device))
        return own
    contents = msgspec.msgpack.decode(_said(b"", device), type=_Contents)
    tensors = dict[str, Tensor]()
    for name, kind, shape in contents.tensors:
        tensors[name] = send(torch.empty(shape, dtype=TYPES[kind], device=device)).cpu()
    return SharedTensors(contents.said, tensors)


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


def _said(said: bytes, device: torch.device) -> bytes:
    """Bytes of rank 0, for every rank."""
    length = torch.tensor([len(said)], device=device)
    dist.broadcast(length, 0)
    sent = torch.empty(int(length), dtype=torch.uint8, device=device)
    if dist.get_rank() == 0:
        sent.copy_(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    return send(sent).cpu().numpy().tobytes()


def send(tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank; of the others the type, shape and device alone count."""
    sent = tensor.detach().contiguous()
    for piece in torch.split(sent.view(-1).view(torch.uint8), PIECE_BYTES):
        dist.broadcast(piece, 0)
    return sent
