"""The trainer's weights for a publication: the model of all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import trio
from torch import Tensor

from asyncrl.actors.rank_orders import RankOrders
from asyncrl.actors.rank_parts import gathered, scored
from asyncrl.messages import Gather, Score
from asyncrl.training.learner import Learner
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.handoff import Handoff
from asyncrl.weightsync.narrowed import SentWeights
from asyncrl.weightsync.trainer_canary import TrainerCanary
from asyncrl.weightsync.transport import Gathered

PIECES = 8
"""Pieces in which the weights of several ranks are gathered beside training, at most: each may wait
for a micro-batch, and rank 0 has two of them in host memory."""


@dataclass(frozen=True)
class PublishedWeights:
    """A `WeightSource` (`asyncrl.weightsync.transport`): the weights of one rank as they are, and
    those of several as they are gathered; rounded as `sent` says. `compared` is None where no
    engine compares a canary."""

    learner: Learner
    orders: RankOrders
    plan: Plan
    sent: SentWeights
    compared: TrainerCanary | None

    @property
    def sharded(self) -> bool:
        return self.learner.rank.size > 1

    async def gather(self, average: bool = False) -> Gathered:
        if self.sharded:
            weights = await self._gathered(Gather())
            averaged = await self._gathered(Gather(average=True)) if average else None
            return Gathered(weights, averaged, await self.canary())
        model, of_average = self.learner.model, None
        if average:
            assert self.learner.average is not None, "evaluation.weights needs train.ema"
            assert self.learner.average.policy is not None, "one rank has a model of it"
            of_average = self.sent.of(self.learner.average.policy.model)
        version, compared = self.learner.version, self.compared
        canary = await compared.of(version, model) if compared else []
        return Gathered(self.sent.of(model), of_average, canary)

    async def canary(self) -> list[float]:
        if self.compared is None:
            return []

        async def computed() -> list[float]:
            assert self.compared is not None
            own = partial(scored, self.learner, self.sent, self.compared.text)
            return await self.orders.give(Score(), (memoryview(self.compared.text.tobytes()),), own)

        return await self.compared.by_ranks(self.learner.version, computed)

    async def hand_over(self, handoff: Handoff, *, average: bool, beside: bool) -> None:
        with handoff.filling():
            if not beside:
                order = Gather(average)
                await self.orders.give(order, (), lambda: handoff.put(self._narrowed(order)))
                return
            for first, end in self._cuts():
                if handoff.left:
                    break
                piece = await self._gathered(Gather(average, first, end))
                await trio.to_thread.run_sync(handoff.put, piece)

    async def _gathered(self, order: Gather) -> list[tuple[str, Tensor]]:
        """Some tensors, all of them in host memory."""
        return await self.orders.give(order, (), lambda: list(self._narrowed(order)))

    def _narrowed(self, order: Gather) -> Iterator[tuple[str, Tensor]]:
        return self.sent.narrowed(gathered(self.learner, order), self.learner.model)

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """The first tensor of each piece, and the one after its last."""
        least = max(self.plan.bucket_bytes, -(-self.plan.total_bytes // PIECES))
        offsets, first = self.plan.offsets, 0
        for end in range(1, len(offsets)):
            if offsets[end] - offsets[first] >= least or end == len(offsets) - 1:
                yield first, end
                first = end
