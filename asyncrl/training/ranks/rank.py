"""One rank of a trainer, as a learner sees it. Invariant: each rank makes the same calls in the
same order, and knows the same afterwards, but for the weights: of these it has its shard.

A learner is the same program on every rank. It gives each rank some of the packed batches, adds up
what was found out about all of them, and steps with what all of them gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from asyncrl.training.packing import PackedBatch
from asyncrl.training.ranks.stand_in import Pointed, StandIn
from asyncrl.training.stored_model import ModelRows
from asyncrl.training.stored_state import StoredPart, StoredRows, whole_of
from asyncrl.training.sums import Sums


class Rank(Protocol):
    """Rank `index` of `size`."""

    @property
    def index(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def lanes(self) -> int:
        """Packed batches that are computed at a time: one of each rank, or of those ranks that
        compute it together."""
        ...

    def share(self, packed: Sequence[PackedBatch]) -> list[int | None]:
        """Places of the packed batches that this rank has, one for each round; None: it keeps up
        with others."""
        ...

    def keep_up(self, model: PreTrainedModel, *, backward: bool = True) -> None:
        """Take part in a round, forward and mostly backward, with nothing to learn."""
        ...

    def added(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' numbers at each place (float32)."""
        ...

    def joined(self, outcomes: Tensor) -> Tensor:
        """The largest of all ranks' numbers at each place (int64 [tokens])."""
        ...

    def summed(self, sums: Sums) -> Sums:
        """Sums over all ranks."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor of which each rank may have a shard, detached and whole."""
        ...

    def sharded(
        self, tensor: Tensor | StoredRows, like: Tensor, device: torch.device | None = None
    ) -> Tensor:
        """This rank's shard of a whole tensor, or of a stored one, on the device of `like`, or a
        stored one on `device`, and divided as that is."""
        ...

    @property
    def writers(self) -> Sequence[int]:
        """The ranks that write into the run's directory, rank 0 first: those on its machine."""
        ...

    def part(self, tensor: Tensor, turn: int) -> StoredPart | None:
        """The part of a tensor that this rank writes, None for nothing: the rows of its shard, or
        all of it. Every rank calls this for the same tensors, with their numbers."""
        ...

    def told(self, said: bytes) -> list[bytes]:
        """Bytes that each rank has said, in their order. All ranks call this alike, in the thread
        that writes, beside what computes."""
        ...

    def divide(self, model: PreTrainedModel, weights: ModelRows | None = None) -> None:
        """Leave this rank its shards of a model that does not learn, with `weights`, if it has no
        memory for its own; otherwise all ranks have it whole and alike."""
        ...

    def let_go(self, model: PreTrainedModel) -> None:
        """Let go of weights that a pass without a backward pass left gathered: they may change."""
        ...

    def stand_in(self, model: PreTrainedModel) -> StandIn:
        """The place in which other weights stand in for those of a model that learn."""
        ...

    def squared_norm(self, total: Tensor, learn: Sequence[Parameter]) -> Tensor:
        """The squared norm (float64) of the gradient of `total`, which all ranks compute alike, by
        the parameters that learn. The gradients that are being accumulated do not change."""
        ...

    def computes(self, model: PreTrainedModel) -> torch.dtype:
        """The type that the model computes in, and that is published: its shards may be float32."""
        ...

    def as_computed(self, tensor: Tensor) -> Tensor:
        """A tensor of which each rank may have a shard, whole, detached, and as the model computes
        with it."""
        ...


class Alone:
    """A trainer of one rank, which has all there is."""

    index, size, lanes = 0, 1, 1

    def share(self, packed: Sequence[PackedBatch]) -> list[int | None]:
        """All of them."""
        return list(range(len(packed)))

    def keep_up(self, model: PreTrainedModel, *, backward: bool = True) -> None:
        """Do nothing: nobody waits."""

    def added(self, tensor: Tensor) -> Tensor:
        """These."""
        return tensor

    def joined(self, outcomes: Tensor) -> Tensor:
        """These."""
        return outcomes

    def summed(self, sums: Sums) -> Sums:
        """These."""
        return sums

    def whole(self, tensor: Tensor) -> Tensor:
        """The tensor itself, detached."""
        return tensor.detach()

    def sharded(
        self, tensor: Tensor | StoredRows, like: Tensor, device: torch.device | None = None
    ) -> Tensor:
        """The tensor, on the device of `like`, or on `device`."""
        return whole_of(tensor).to(device or like.device)

    writers = (0,)

    def part(self, tensor: Tensor, turn: int) -> StoredPart:
        """All of it."""
        return StoredPart(tensor)

    def told(self, said: bytes) -> list[bytes]:
        """This."""
        return [said]

    def divide(self, model: PreTrainedModel, weights: ModelRows | None = None) -> None:
        """Leave it whole."""
        assert weights is None, "one rank has memory for all there is"

    def let_go(self, model: PreTrainedModel) -> None:
        """Do nothing: nothing was gathered."""

    def stand_in(self, model: PreTrainedModel) -> StandIn:
        """A second model, which computes with them."""
        return Pointed(model)

    def squared_norm(self, total: Tensor, learn: Sequence[Parameter]) -> Tensor:
        """By autograd alone, which accumulates nothing."""
        gradients = torch.autograd.grad(total, learn, allow_unused=True)
        norms = torch._foreach_norm([each for each in gradients if each is not None])
        return torch.stack(norms).double().square().sum()

    def computes(self, model: PreTrainedModel) -> torch.dtype:
        """Its own type."""
        own: torch.dtype = model.dtype
        return own

    def as_computed(self, tensor: Tensor) -> Tensor:
        """The tensor itself, detached."""
        return tensor.detach()


ALONE = Alone()
