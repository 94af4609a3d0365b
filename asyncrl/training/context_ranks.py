"""Ranks that compute one packed batch together, each some of its places (context parallel).
Invariant: each knows the figures of all tokens afterwards, and has its part of the gradient; the
sum of these parts is the gradient of one rank.

A model computes each place by itself, but for attention: there the ranks gather the keys and values
of all places for the queries of their own. Backwards the gradients of keys and values are added up
over the ranks, each of which keeps those of its own. The loss is computed by every rank alike, from
figures that it has gathered, and each goes on with the gradient of its own tokens alone.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from asyncrl.tasks.images.vision_model import FAMILIES
from asyncrl.training.models import ModelError
from asyncrl.training.packing import PackedBatch, own_part
from asyncrl.training.trees.divided_places import Divided

_CONTEXT = "asyncrl_context"
"""Attribute of a model whose packed batches several ranks compute together."""


class ContextRanks(Protocol):
    """Rank `index` of `size` that compute a packed batch together."""

    @property
    def index(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gathered(self, own: Tensor) -> Tensor:
        """The rows of all ranks, one rank's after another's."""
        ...

    def scattered(self, rows: Tensor) -> Tensor:
        """The sum of the ranks' tensors, of which each has the rows that it gave `gathered`."""
        ...

    def added(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors."""
        ...

    def part(self, packed: PackedBatch) -> tuple[PackedBatch, Tensor]:
        """This rank's part of a packed batch, and which tokens are there, as `own_part`."""
        ...


class ContextPart:
    """A rank by its place, from which its part of a packed batch follows."""

    def __init__(self, index: int, size: int) -> None:
        self.index, self.size = index, size

    def part(self, packed: PackedBatch) -> tuple[PackedBatch, Tensor]:
        """This rank's part, as in `ContextRanks`."""
        return own_part(packed, self.index, self.size)


def divide_context(model: PreTrainedModel, ranks: ContextRanks) -> None:
    """Compute the model's packed batches together with these ranks from now on."""
    setattr(model, _CONTEXT, ranks)


def context_of(model: PreTrainedModel) -> ContextRanks | None:
    """The ranks that compute a model's packed batches together; None: each has its own."""
    found: ContextRanks | None = getattr(model, _CONTEXT, None)
    return found


def refuse_context(model: PreTrainedModel, *, shares: bool) -> None:
    """Raise ModelError for a model whose packed batches cannot be computed by several ranks
    together: one that is not given each token once (`shares`), or reads images."""
    why = ""
    if model.config.model_type in FAMILIES:
        why = "it reads images"
    elif not shares:
        why = "it mixes tokens otherwise than by full attention"
    if why:
        raise ModelError(
            f"the model ({type(model).__name__}) cannot have the tokens of a row divided over "
            f"ranks, because {why}: set train.context_ranks to 1"
        )


class GatheredAttention:
    """Attention of a rank's own places to all. `inner` is that of these queries to those keys."""

    def __init__(self, inner: Any, ranks: ContextRanks, divided: Divided) -> None:
        self._inner, self._ranks = inner, ranks
        self._order = divided.order

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **rest: Any
    ) -> Tensor:
        """Attention of a layer, as `TableAttention.attend`, where all are of this rank's places."""
        self._order = self._order.to(query.device)  # once for all layers
        own = torch.cat([key, value], -1)[0].transpose(0, 1)
        rows: Tensor = _RowsOfRanks.apply(own, self._ranks)  # type: ignore[no-untyped-call]
        every = rows.index_select(0, self._order).transpose(0, 1)[None]
        keys, values = torch.split(every, [key.shape[-1], value.shape[-1]], -1)
        found: Tensor = self._inner.attend(module, query, keys, values, **rest)
        return found


def of_all(own: Tensor, ranks: ContextRanks, tokens: Tensor, count: int) -> Tensor:
    """Figures of all tokens, [count], from a rank's `own` (of the `tokens`, int64 indexes), with
    the gradient of these alone."""
    found: Tensor = _OfAll.apply(own, ranks, tokens, count)  # type: ignore[no-untyped-call]
    return found


class _RowsOfRanks(torch.autograd.Function):
    """Rows of all ranks; backwards the sum of their gradients, in float32 at least."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: ContextRanks) -> Tensor:
        ctx.ranks, ctx.dtype = ranks, own.dtype
        return ranks.gathered(own.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).contiguous()
        return ctx.ranks.scattered(wide).to(ctx.dtype), None


class _OfAll(torch.autograd.Function):
    """Figures of all tokens; backwards those of this rank's."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: ContextRanks, tokens: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(tokens)
        every = own.new_zeros(count).index_copy_(0, tokens, own)
        return ranks.added(every)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (tokens,) = ctx.saved_tensors
        return gradient.index_select(0, tokens), None, None, None
