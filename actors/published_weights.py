"""The trainer's weights for a publication: the model of all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.actors.rank_orders import RankOrders
from asyncrl.actors.rank_parts import gathered
from asyncrl.messages import Gather
from asyncrl.training.learner import Learner
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.handoff import Handoff
from asyncrl.weightsync.narrowed import SentWeights
from asyncrl.weightsync.trainer_canary import TrainerCanary
from asyncrl.weightsync.transport import Gathered


@dataclass(frozen=True)
class PublishedWeights:
    """A `WeightSource` (`asyncrl.weightsync.transport`): the weights of one rank as they are, and
    those of several as they were when they were gathered; rounded as `sent` says. `canary` is None
    where no engine compares one."""

    learner: Learner
    orders: RankOrders
    plan: Plan
    sent: SentWeights
    canary: TrainerCanary | None

    @property
    def sharded(self) -> bool:
        return self.learner.rank.size > 1

    async def gather(self, average: bool = False) -> Gathered:
        own = partial(gathered, self.learner, average)
        model, of_average = await self.orders.give(Gather(average), (), own)
        assert model is not None, "rank 0 has it"
        canary = await self.canary.of(self.learner.version, model) if self.canary else []
        averaged = None if of_average is None else self._published(of_average)
        return Gathered(self._published(model), averaged, canary)

    async def hand_over(self, handoff: Handoff) -> None:
        rank = self.learner.rank
        own = partial(handoff.fill, rank.gathering(self.learner.model))
        await self.orders.give(Gather(), (), own)

    def _published(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        return self.sent.of(model)
