"""One rank of a trainer, as a learner sees it. Invariant: each rank makes the same calls in the
same order, and knows the same afterwards, but for the weights: of these it has its shard.

A learner is the same program on every rank. It gives each rank some of the packed batches, adds up
what was found out about all of them, and steps with what all of them gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from asyncrl.training.packing import PackedBatch
from asyncrl.training.ranks.stand_in import Pointed, StandIn
from asyncrl.training.sums import Sums


class Rank(Protocol):
    """Rank `index` of `size`."""

    @property
    def index(self) -> int: ...

    @property
    def size(self) -> int: ...

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

    def sharded(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This rank's shard of a whole tensor, on the device of `like` and divided as that is."""
        ...

    def divide(self, model: PreTrainedModel) -> None:
        """Leave this rank its shards of a model that does not learn, which all ranks have whole,
        alike and on their device."""
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

    def gathering(
        self, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Each parameter of the whole model as it computes, by name, gathered when it is its turn:
        for rank 0, while the others are in `gathered`. All of them have to be taken. `weights` are
        as for that."""
        ...

    def gathered(
        self, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None
    ) -> PreTrainedModel | None:
        """The whole model as it computes, for rank 0, which writes and sends it; None for others.
        Nothing need be able to be computed with it. Several ranks can gather other `weights`, of
        which each has its shards, in the place of those of the model that learn."""
        ...


class Alone:
    """A trainer of one rank, which has all there is."""

    index, size = 0, 1

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

    def sharded(self, tensor: Tensor, like: Tensor) -> Tensor:
        """The tensor, on the device of `like`."""
        return tensor.to(like.device)

    def divide(self, model: PreTrainedModel) -> None:
        """Leave it whole."""

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

    def gathering(
        self, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Its parameters, detached."""
        assert weights is None, "one rank has a model of whatever it has"
        return ((name, parameter.detach()) for name, parameter in model.named_parameters())

    def gathered(
        self, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None
    ) -> PreTrainedModel:
        """The model itself."""
        assert weights is None, "one rank has a model of whatever it has"
        return model


ALONE = Alone()
