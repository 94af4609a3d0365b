"""Tensors that rank 0 gives every other rank, before there are shards of them: those of other
machines cannot read its files. Invariant: bytes are sent as they are, and nothing is rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

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
            _send(tensor.to(device))
        return own
    contents = msgspec.msgpack.decode(_said(b"", device), type=_Contents)
    tensors = dict[str, Tensor]()
    for name, kind, shape in contents.tensors:
        tensors[name] = _send(torch.empty(shape, dtype=TYPES[kind], device=device)).cpu()
    return SharedTensors(contents.said, tensors)


def share_weights(model: PreTrainedModel) -> None:
    """Give the models of all ranks the weights and buffers of rank 0's; tied ones once."""
    given = set[int]()
    tensors: Mapping[str, Any] = model.state_dict()
    for tensor in tensors.values():
        if tensor.data_ptr() not in given:
            given.add(tensor.data_ptr())
            tensor.copy_(_send(tensor))


def _said(said: bytes, device: torch.device) -> bytes:
    """Bytes of rank 0, for every rank."""
    length = torch.tensor([len(said)], device=device)
    dist.broadcast(length, 0)
    sent = torch.empty(int(length), dtype=torch.uint8, device=device)
    if dist.get_rank() == 0:
        sent.copy_(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    return _send(sent).cpu().numpy().tobytes()


def _send(tensor: Tensor) -> Tensor:
    """Rank 0's tensor, on every rank; of the others the type, shape and device alone count."""
    sent = tensor.detach().contiguous()
    for piece in torch.split(sent.view(-1).view(torch.uint8), PIECE_BYTES):
        dist.broadcast(piece, 0)
    return sent
