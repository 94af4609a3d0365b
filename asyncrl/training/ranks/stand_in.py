"""A model with other weights than its own, for a while. Invariant: afterwards the model that learns
has its own weights again, bit for bit, and its gradients have not changed.

Of one rank a second model computes: it has the architecture and no memory of its own for weights,
and is pointed at those that stand in. So the learner's weights may be read at the same time (by a
publication). Of several ranks the model itself computes, and each rank exchanges its shards with
those that stand in: a second model would need memory for its own, and everything that reads a
sharded model waits for its turn anyway. No pass may be between forwards and backwards then.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from transformers import PreTrainedModel

from asyncrl.training.adapters import learning


class StandIn(Protocol):
    """The place in which other weights stand in for a model's own that learn."""

    def of(self, weights: Mapping[str, Tensor]) -> AbstractContextManager[PreTrainedModel]:
        """The model with these weights, by the names of those that learn, in the block."""
        ...


class Pointed:
    """A second model, which is pointed at the weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        own = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
        self._second: PreTrainedModel = copy.deepcopy(model, own)

    @contextmanager
    def of(self, weights: Mapping[str, Tensor]) -> Iterator[PreTrainedModel]:
        """The second model."""
        for name, parameter in learning(self._second):
            parameter.data = weights[name]
        yield self._second


class Exchanged:
    """The model itself, whose shards change places with those of the weights. These are of the type
    of the model's shards, and divided alike."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    @contextmanager
    def of(self, weights: Mapping[str, Tensor]) -> Iterator[PreTrainedModel]:
        """The model that learns."""
        self._exchange(weights)
        try:
            yield self._model
        finally:
            self._exchange(weights)

    @torch.no_grad()
    def _exchange(self, weights: Mapping[str, Tensor]) -> None:
        let_go(self._model)
        for name, parameter in learning(self._model):
            own, other = local(parameter), local(weights[name])
            kept = own.clone()
            own.copy_(other)
            other.copy_(kept)


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, detached; the tensor where it is whole."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def divided_like(like: Tensor, own: Tensor, shape: torch.Size) -> Tensor:
    """This rank's shard of a tensor of another last dimension, type or device than `like`, and
    divided as that is; itself where that is whole."""
    if not isinstance(like, DTensor):
        return own
    whole = torch.empty(shape, dtype=own.dtype, device="meta")
    meta = TensorMeta(whole.shape, whole.stride(), own.dtype)
    # not `from_local`, which takes a shard in host memory to the mesh's device
    spec = DTensorSpec(like.device_mesh, like.placements, tensor_meta=meta)
    return DTensor(own, spec, requires_grad=False)  # type: ignore[no-untyped-call]


def first_row(tensor: Tensor) -> int:
    """The row of the whole tensor that this rank's shard begins with; 0 where it is whole."""
    if not isinstance(tensor, DTensor):
        return 0
    axis = next(n for n, placed in enumerate(tensor.placements) if placed.is_shard())
    place, ranks = tensor.device_mesh.get_local_rank(axis), tensor.device_mesh.size(axis)
    return min(place * -(-len(tensor) // ranks), len(tensor))  # as torch.chunk divides it


def let_go(model: PreTrainedModel) -> None:
    """Let go of weights that a pass without a backward pass left gathered: the next one must gather
    them again, as they may have changed by then."""
    if isinstance(model, FSDPModule):
        model.reshard()
