"""Several ranks that train one model, of which each has a shard (FSDP2: `fully_shard` of torch).
Invariant: gradients are sums over ranks, never means, and in float32.

Each layer's weights are gathered for a pass and let go after it, and its gradients are added up
over the ranks and divided among them. So a rank holds its part of weights, gradients and moments,
and one layer's weights besides. Where the model is of a smaller type than float32, shards are
float32, and what is gathered is rounded to the model's own type: what the optimizer changes, and
what the model computes with, are then what `MasterWeights` are for one rank.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
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

from asyncrl.training.adapters import (
    adapted,
    base_digest,
    base_parameters,
    learning,
)
from asyncrl.training.context_ranks import divide_context, refuse_context
from asyncrl.training.forward import log_probabilities, may_share, shares
from asyncrl.training.packing import PackedBatch, cost, pack
from asyncrl.training.ranks.collective_times import count_collectives, times_of
from asyncrl.training.ranks.context_group import ContextGroup
from asyncrl.training.ranks.pieces import pieces
from asyncrl.training.ranks.rounds import rounds
from asyncrl.training.ranks.stand_in import (
    Exchanged,
    StandIn,
    divided_like,
    first_row,
    let_go,
    local,
)
from asyncrl.training.stored_model import ModelRows
from asyncrl.training.stored_state import StoredPart, StoredRows, whole_of
from asyncrl.training.sums import Sums

_BESIDE = "asyncrl_beside"
"""Attribute of a mesh: a group of its ranks for threads that write, beside what computes, in host
memory."""
_TOGETHER = "asyncrl_together"
"""Attribute of a mesh: those of its ranks that compute packed batches together with this one."""
WRITTEN = timedelta(hours=1)
"""Longest wait of a rank for others to write their files. One that is lost ends it at once."""


class RankGroup:
    """One rank of several. Satisfies `asyncrl.training.ranks.rank.Rank`."""

    def __init__(self, mesh: DeviceMesh, model: PreTrainedModel, *, writes: bool = True) -> None:
        self._mesh = mesh
        self._all = mesh if mesh.ndim == 1 else mesh._flatten()
        self._dtype: torch.dtype = model.dtype
        self.index = mesh.get_rank()
        self.size = mesh.size()
        self._context: ContextGroup | None = getattr(mesh, _TOGETHER, None)
        self.lanes = self.size // (self._context.size if self._context else 1)
        self._device = torch.device(mesh.device_type)
        self._beside: dist.ProcessGroup | None = getattr(mesh, _BESIDE, None)
        self._writes = writes
        self.times = times_of(mesh)
        """Those of this rank's collectives."""

    def share(self, packed: Sequence[PackedBatch]) -> list[int | None]:
        """Places of the packed batches that this rank has, one for each round; None: it keeps up
        with others."""
        costs, together = [cost(p) for p in packed], self.size // self.lanes
        found = [each[self.index // together] for each in rounds(costs, self.lanes)]
        self.times.given(sum(costs[place] for place in found if place is not None) / together)
        return found

    @property
    def _speaks(self) -> bool:
        """True of one of the ranks that compute packed batches together, and know the same."""
        return self._context is None or self._context.index == 0

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
        if not self._speaks:
            found.zero_()
        with self.times.waiting():
            dist.all_reduce(found, dist.ReduceOp.SUM, group=self._group)
        return found.to(tensor.device)

    def joined(self, outcomes: Tensor) -> Tensor:
        """The largest of all ranks' numbers at each place (int64 [tokens])."""
        found = outcomes.to(self._device)
        with self.times.waiting():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return found.to(outcomes.device)

    def summed(self, sums: Sums) -> Sums:
        """Sums over all ranks, added in the order of the ranks."""
        found = Sums()
        if not self._speaks:
            sums = Sums(routed=sums.routed)  # of its own places
        with self.times.waiting():
            parts = _gathered(sums.encoded(), self._group, self._device)
        for part in parts:
            found = found.merge(Sums.decoded(part))
        return found

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor of which each rank may have a shard, detached and whole."""
        tensor = tensor.detach()
        if isinstance(tensor, DTensor) and tensor.to_local().device.type != self._device.type:
            own = tensor.to_local().to(self._device)  # only there can ranks give it to each other
            tensor = divided_like(tensor, own, tensor.shape)
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def sharded(
        self, tensor: Tensor | StoredRows, like: Tensor, device: torch.device | None = None
    ) -> Tensor:
        """This rank's shard of a whole tensor, or of a stored one, on the device of `like` or on
        `device`, and divided as that is; its rows are as many."""
        if not isinstance(like, DTensor):
            return whole_of(tensor).to(device or like.device)
        if not isinstance(tensor, Tensor):
            rows = tensor.rows(first_row(like), len(local(like))).to(device or like.device)
            return divided_like(like, rows, tensor.shape)
        tensor = tensor.to(like.device)
        # every rank has the whole: nothing need be sent
        return distribute_tensor(tensor, self._mesh, like.placements, src_data_rank=None)

    @cached_property
    def writers(self) -> Sequence[int]:
        """The ranks that write into the run's directory."""
        said = self.told(b"1" if self._writes else b"")
        return [index for index, able in enumerate(said) if able]

    def part(self, tensor: Tensor, turn: int) -> StoredPart | None:
        """The part of a tensor that this rank writes: of replicas, they take turns; where not all
        ranks write, those that do take turns at whole tensors."""
        if not isinstance(tensor, DTensor):
            return StoredPart(tensor) if self.index == 0 else None
        if len(self.writers) < self.size:
            found = self.whole(tensor)
            mine = self.index == self.writers[turn % len(self.writers)]
            return StoredPart(found) if mine else None
        if self._mesh.ndim > 1 and self._mesh.get_local_rank(0) != turn % self._mesh.size(0):
            return None
        rows = local(tensor)
        return StoredPart(rows, first_row(tensor), len(tensor)) if len(rows) else None

    def told(self, said: bytes) -> list[bytes]:
        """Bytes that each rank has said, in their order."""
        assert self._beside is not None, "the mesh is of `mesh_of`"
        return _gathered(said, self._beside, torch.device("cpu"))

    def divide(self, model: PreTrainedModel, weights: ModelRows | None = None) -> None:
        """Leave this rank its shards of a model that does not learn, with `weights`, if it has no
        memory for its own; otherwise all ranks have it whole and alike."""
        _divide(model, self._mesh, MixedPrecisionPolicy())
        _compute_together(model, self._context)
        if weights is not None:
            _fill(model, weights)

    def let_go(self, model: PreTrainedModel) -> None:
        """Let go of weights that a pass without a backward pass left gathered: they may change."""
        let_go(model)

    def stand_in(self, model: PreTrainedModel) -> StandIn:
        """The model itself, whose shards they change places with."""
        return Exchanged(model)

    def squared_norm(self, total: Tensor, learn: Sequence[nn.Parameter]) -> Tensor:
        """The squared norm (float64) of the gradient of `total`, which all ranks compute alike, by
        the parameters that learn. Gradients are sums over ranks, and there are as many of it as
        lanes."""
        kept = [parameter.grad for parameter in learn]
        for parameter in learn:
            parameter.grad = None
        total.backward()  # type: ignore[no-untyped-call]
        own = [parameter.grad for parameter in learn if parameter.grad is not None]
        norm = self.whole(nn.utils.get_total_norm(own)).double() / self.lanes
        for parameter, gradient in zip(learn, kept, strict=True):
            parameter.grad = gradient
        return norm.square()

    def computes(self, model: PreTrainedModel) -> torch.dtype:
        """The type that the model computes in, and that is published: its shards are float32."""
        return self._dtype

    def as_computed(self, tensor: Tensor) -> Tensor:
        """A tensor of which each rank may have a shard, whole and as the model computes with it."""
        found = self.whole(tensor)
        return found.to(self._dtype) if found.is_floating_point() else found

    @property
    def _group(self) -> dist.ProcessGroup:
        return self._all.get_group()


def shard(
    model: PreTrainedModel,
    mesh: DeviceMesh,
    weights: ModelRows | None = None,
    *,
    writes: bool = True,
) -> RankGroup:
    """Leave each rank its shards of a model, in float32 of what learns: those of `weights`, if the
    model has no memory for its own; otherwise all ranks have it whole and alike. One of its
    `pieces` at a time is whole on the device of the mesh. `writes` says if this rank can write into
    the run's directory. Gives this rank."""
    group, policy = RankGroup(mesh, model, writes=writes), MixedPrecisionPolicy()
    smaller = torch.finfo(model.dtype).bits < torch.finfo(torch.float32).bits
    if smaller:
        policy = MixedPrecisionPolicy(param_dtype=model.dtype, reduce_dtype=torch.float32)
    learn = {name for name, _ in learning(model)} if smaller else set[str]()
    _divide(model, mesh, policy, learn)
    _compute_together(model, getattr(mesh, _TOGETHER, None))
    if weights is not None:
        _fill(model, weights)
    if adapted(model):
        base_digest(model, group.whole)
    return group


def _divide(
    model: PreTrainedModel,
    mesh: DeviceMesh,
    policy: MixedPrecisionPolicy,
    in_float32: Collection[str] = (),
) -> None:
    """Leave each rank its shards of a model; those of the parameters with these names in float32.
    Of a model without memory they have any numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = dict[int, nn.Parameter]()
    for module in pieces(model):
        for holder in module.modules():
            for name, parameter in list(holder.named_parameters(recurse=False)):
                if isinstance(parameter, DTensor):
                    continue
                if parameter.is_meta:
                    wide = names[id(parameter)] in in_float32
                    if id(parameter) not in own:
                        own[id(parameter)] = _allocated(parameter, mesh.device_type, wide)
                    holder.register_parameter(name, own[id(parameter)])
                else:
                    parameter.data = parameter.data.to(mesh.device_type)
                    if names.get(id(parameter)) in in_float32:
                        parameter.data = parameter.data.float()
            for name, buffer in list(holder.named_buffers(recurse=False)):
                setattr(holder, name, buffer.to(mesh.device_type))
        found: Any = fully_shard(module, mesh=mesh, mp_policy=policy)
        assert isinstance(found, FSDPModule)
        found.set_gradient_divide_factor(1.0)
        found.set_force_sum_reduction_for_comms(True)  # gloo has no other
        count_collectives(found, mesh)


def _compute_together(model: PreTrainedModel, context: ContextGroup | None) -> None:
    """Compute the model's packed batches together with these ranks. Raises ModelError where that
    cannot be."""
    if context is not None:
        refuse_context(model, shares=may_share(model))
        divide_context(model, context)


def _gathered(said: bytes, group: dist.ProcessGroup, device: torch.device) -> list[bytes]:
    """Bytes of each rank of a group, in their order."""
    size = group.size()
    length = torch.tensor([len(said)], device=device)
    lengths = [torch.empty_like(length) for _ in range(size)]
    dist.all_gather(lengths, length, group=group)
    longest = max(int(each) for each in lengths)
    mine = torch.zeros(longest, dtype=torch.uint8, device=device)
    if said:
        mine[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
    every = [torch.empty_like(mine) for _ in range(size)]
    if longest:
        dist.all_gather(every, mine, group=group)
    return [
        part[: int(length)].cpu().numpy().tobytes()
        for part, length in zip(every, lengths, strict=True)
    ]


def _allocated(parameter: nn.Parameter, device: str, wide: bool) -> nn.Parameter:
    """Memory for a parameter that has none. On a processor it takes no page before it is used."""
    dtype = torch.float32 if wide else parameter.dtype
    empty = torch.empty(parameter.shape, dtype=dtype, device=device)
    return nn.Parameter(empty, parameter.requires_grad)


@torch.no_grad()
def _fill(model: PreTrainedModel, weights: ModelRows) -> None:
    """Fill this rank's shards, and buffers that files have. All ranks call this alike."""
    stored = model.state_dict().keys()
    filled: dict[str, Tensor] = dict(base_parameters(model))
    for name, buffer in model.named_buffers():
        if name in stored:
            filled[name.replace("base_layer.", "")] = buffer
    for name, tensor in filled.items():
        rows = local(tensor)
        staged = rows if rows.device.type == "cpu" else torch.empty_like(rows, device="cpu")
        weights.fill(name, staged, first_row(tensor))
        if staged is not rows:
            rows.copy_(staged)


@contextmanager
def open_ranks(
    device: str,
    store: Store,
    index: int,
    size: int,
    replicas: int = 1,
    together: int = 1,
    *,
    patience_s: float,
) -> Iterator[DeviceMesh]:
    """Join the other ranks, which meet in `store`; no collective of them may take longer than
    `patience_s` seconds. Gives their mesh, [size], or [replicas, size / replicas], of which so many
    neighbours compute packed batches `together`. Raises torch's DistError where one does not
    come."""
    cuda = device == "cuda"
    if cuda:
        torch.cuda.set_device(0)  # the only one that this process sees
    patience = timedelta(seconds=math.ceil(patience_s))
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=index, world_size=size, timeout=patience
    )
    with warnings.catch_warnings():
        # of logits changed in place, which none are
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        yield mesh_of(device, torch.arange(size), replicas, together, patience)
    dist.destroy_process_group()  # after an error it might wait for a rank that is lost


def mesh_of(
    device: str,
    ranks: Tensor,
    replicas: int,
    together: int = 1,
    patience: timedelta | None = None,
) -> DeviceMesh:
    """The mesh of these ranks, int64 [ranks]: of one dimension, or of replicas and the ranks of
    each. So many neighbours compute packed batches `together`. All ranks of the default group call
    this."""
    if replicas == 1:
        mesh = DeviceMesh(device, ranks)
    else:
        names = ("replicate", "shard")
        mesh = DeviceMesh(device, ranks.reshape(replicas, -1), mesh_dim_names=names)
    setattr(mesh, _BESIDE, dist.new_group(ranks.tolist(), timeout=WRITTEN, backend="gloo"))
    if together > 1:
        for neighbours in torch.split(ranks, together):
            group = dist.new_group(neighbours.tolist(), timeout=patience)
            if dist.get_rank() in neighbours.tolist():
                setattr(mesh, _TOGETHER, ContextGroup(group, times_of(mesh)))
    return mesh
