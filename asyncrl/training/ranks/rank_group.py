"""Several ranks that train one model, of which each has a shard (FSDP2: `fully_shard` of torch).
Invariant: gradients are sums over ranks, never means, and in float32.

Each layer's weights are gathered for a pass and let go after it, and its gradients are added up
over the ranks and divided among them. So a rank holds its part of weights, gradients and moments,
and one layer's weights besides. Where the model is of a smaller type than float32, shards are
float32, and what is gathered is rounded to the model's own type: what the optimizer changes, and
what the model computes with, are then what `MasterWeights` are for one rank.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from asyncrl.training.adapters import adapted, base_digest, learning
from asyncrl.training.forward import log_probabilities, shares
from asyncrl.training.models import model_with
from asyncrl.training.packing import PackedBatch, cost, pack
from asyncrl.training.ranks.pieces import pieces
from asyncrl.training.ranks.rounds import rounds
from asyncrl.training.ranks.stand_in import Exchanged, StandIn, let_go
from asyncrl.training.sums import Sums


class RankGroup:
    """One rank of several. Satisfies `asyncrl.training.ranks.rank.Rank`."""

    def __init__(self, mesh: DeviceMesh, model: PreTrainedModel) -> None:
        self._mesh = mesh
        self._all = mesh if mesh.ndim == 1 else mesh._flatten()
        self._dtype: torch.dtype = model.dtype
        self.index = mesh.get_rank()
        self.size = mesh.size()
        self._device = torch.device(mesh.device_type)
        # the base never changes: rank 0 keeps it in host memory, to merge adapters into
        self._outline = _outline(model) if adapted(model) and self.index == 0 else None

    def share(self, packed: Sequence[PackedBatch]) -> list[int | None]:
        """Places of the packed batches that this rank has, one for each round; None: it keeps up
        with others."""
        return [each[self.index] for each in rounds([cost(p) for p in packed], self.size)]

    def keep_up(self, model: PreTrainedModel, *, backward: bool = True) -> None:
        """Take part in a round, forward and mostly backward, with nothing to learn."""
        ids = np.zeros(2, dtype=np.int32)
        (packed,) = pack(ids, [1], [1], shared=shares(model))
        with torch.set_grad_enabled(backward):
            nothing: Any = log_probabilities(model, packed, 1.0).sum() * 0.0
        if backward:
            nothing.backward()

    def added(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' numbers at each place (float32)."""
        found = tensor.to(self._device, copy=True)
        dist.all_reduce(found, dist.ReduceOp.SUM, group=self._group)
        return found.to(tensor.device)

    def joined(self, outcomes: Tensor) -> Tensor:
        """The largest of all ranks' numbers at each place (int64 [tokens])."""
        found = outcomes.to(self._device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return found.to(outcomes.device)

    def summed(self, sums: Sums) -> Sums:
        """Sums over all ranks, added in the order of the ranks."""
        found = Sums()
        for part in self._gathered(sums.encoded()):
            found = found.merge(Sums.decoded(part))
        return found

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor of which each rank may have a shard, detached and whole."""
        tensor = tensor.detach()
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def sharded(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This rank's shard of a whole tensor, on the device of `like` and divided as that is."""
        tensor = tensor.to(like.device)
        if not isinstance(like, DTensor):
            return tensor
        # every rank has the whole: nothing need be sent
        return distribute_tensor(tensor, self._mesh, like.placements, src_data_rank=None)

    def divide(self, model: PreTrainedModel) -> None:
        """Leave this rank its shards of a model that does not learn, which all ranks have whole,
        alike and on their device."""
        _divide(model, self._mesh, MixedPrecisionPolicy())

    def let_go(self, model: PreTrainedModel) -> None:
        """Let go of weights that a pass without a backward pass left gathered: they may change."""
        let_go(model)

    def stand_in(self, model: PreTrainedModel) -> StandIn:
        """The model itself, whose shards they change places with."""
        return Exchanged(model)

    def squared_norm(self, total: Tensor, learn: Sequence[nn.Parameter]) -> Tensor:
        """The squared norm (float64) of the gradient of `total`, which all ranks compute alike, by
        the parameters that learn. Gradients are sums over ranks, and there are as many of it."""
        kept = [parameter.grad for parameter in learn]
        for parameter in learn:
            parameter.grad = None
        total.backward()  # type: ignore[no-untyped-call]
        own = [parameter.grad for parameter in learn if parameter.grad is not None]
        norm = self.whole(nn.utils.get_total_norm(own)).double() / self.size
        for parameter, gradient in zip(learn, kept, strict=True):
            parameter.grad = gradient
        return norm.square()

    def computes(self, model: PreTrainedModel) -> torch.dtype:
        """The type that the model computes in, and that is published: its shards are float32."""
        return self._dtype

    def gathering(
        self, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Each parameter of the whole model that learns, as it computes, or each of these, by name
        and in host memory, gathered when it is its turn; of ranks but 0 they are of no use."""
        self.let_go(model)
        for name, shard in (weights or dict(learning(model))).items():
            found = self.whole(shard)
            yield name, found if self.index else found.to("cpu", self._dtype)

    def gathered(
        self, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None
    ) -> PreTrainedModel | None:
        """The whole model as it computes, with its own weights or these, in host memory, for rank
        0; None for others. It is gathered one tensor after another, and has no buffers."""
        if self.index:
            for _ in self.gathering(model, weights):
                pass
            return None
        found = dict(self.gathering(model, weights))
        if self._outline is None:
            return model_with(found, model.config, self._dtype)
        with_adapters = _outline(self._outline)
        for name, parameter in learning(with_adapters):
            parameter.data = found[name]
        return with_adapters

    @property
    def _group(self) -> dist.ProcessGroup:
        return self._all.get_group()

    def _gathered(self, said: bytes) -> list[bytes]:
        """Bytes of each rank, in their order."""
        length = torch.tensor([len(said)], device=self._device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        dist.all_gather(lengths, length, group=self._group)
        longest = max(int(each) for each in lengths)
        mine = torch.zeros(longest, dtype=torch.uint8, device=self._device)
        mine[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine, group=self._group)
        return [
            part[: int(size)].cpu().numpy().tobytes()
            for part, size in zip(every, lengths, strict=True)
        ]


def shard(model: PreTrainedModel, mesh: DeviceMesh) -> RankGroup:
    """Leave each rank its shards of a model that all ranks have whole, alike and on the device of
    the mesh; gives this rank. Of a smaller type than float32, one of its `pieces` at a time is
    whole in float32, or its adapters are: the base keeps its type."""
    if adapted(model):
        base_digest(model)  # known from now on: no rank has the whole base later
    group, policy = RankGroup(mesh, model), MixedPrecisionPolicy()
    smaller = torch.finfo(model.dtype).bits < torch.finfo(torch.float32).bits
    if smaller:
        policy = MixedPrecisionPolicy(param_dtype=model.dtype, reduce_dtype=torch.float32)
    learn = {id(parameter) for _, parameter in learning(model)} if smaller else set[int]()
    _divide(model, mesh, policy, learn)
    return group


def _outline(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model with adapters in host memory, for writing: of the adapters alone, where
    the base is there already."""
    learn = {id(parameter) for _, parameter in learning(model)}
    kept = {
        id(p): nn.Parameter(
            torch.empty_like(p, device="cpu") if id(p) in learn else p.detach().cpu(),
            requires_grad=False,
        )
        for p in model.parameters()
    }
    made: PreTrainedModel = copy.deepcopy(model, kept)
    return made


def _divide(
    model: PreTrainedModel,
    mesh: DeviceMesh,
    policy: MixedPrecisionPolicy,
    in_float32: Collection[int] = (),
) -> None:
    """Leave each rank its shards of a model; those of the parameters with these ids in float32."""
    for module in pieces(model):
        for parameter in module.parameters():
            if id(parameter) in in_float32 and not isinstance(parameter, DTensor):
                parameter.data = parameter.data.float()
        found: Any = fully_shard(module, mesh=mesh, mp_policy=policy)
        assert isinstance(found, FSDPModule)
        found.set_gradient_divide_factor(1.0)
        found.set_force_sum_reduction_for_comms(True)  # gloo has no other


@contextmanager
def open_ranks(
    device: str, store: Store, index: int, size: int, replicas: int = 1, *, patience_s: float
) -> Iterator[DeviceMesh]:
    """Join the other ranks, which meet in `store`; no collective of them may take longer than
    `patience_s` seconds. Gives their mesh, [size], or [replicas, size / replicas]. Raises torch's
    DistError where one does not come."""
    cuda = device == "cuda"
    if cuda:
        torch.cuda.set_device(0)  # the only one that this process sees
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=index,
        world_size=size,
        timeout=timedelta(seconds=math.ceil(patience_s)),
    )
    with warnings.catch_warnings():
        # of logits changed in place, which none are
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        yield mesh_of(device, torch.arange(size), replicas)
    dist.destroy_process_group()  # after an error it might wait for a rank that is lost


def mesh_of(device: str, ranks: Tensor, replicas: int) -> DeviceMesh:
    """The mesh of these ranks, int64 [ranks]: of one dimension, or of replicas and the ranks of
    each. All ranks of the default group call this."""
    if replicas == 1:
        return DeviceMesh(device, ranks)
    return DeviceMesh(device, ranks.reshape(replicas, -1), mesh_dim_names=("replicate", "shard"))
