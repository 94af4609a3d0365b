"""The trainer's side of a publication: the model of all ranks, as engines or their servers are sent
it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import trio
from transformers import PreTrainedModel

from actors.actor_context import ActorContext
from actors.rank_orders import RankOrders
from actors.rank_parts import gathered
from actors.server_transfer import ToPublish
from actors.trainer_canary import TrainerCanary
from asyncrl.ipc.messages import Gather, Publish
from asyncrl.training.adapters import published
from asyncrl.training.learner import Learner
from weightsync.buckets import Plan
from weightsync.collective import Sender
from weightsync.epoch_group import SendResult
from weightsync.errors import TransferError
from weightsync.handoff import Handoff
from weightsync.narrowed import narrowed


async def to_publish(
    learner: Learner, orders: RankOrders, place: ActorContext, canary: TrainerCanary
) -> ToPublish:
    """The learner's weights, whole, as servers are sent them, and their canary."""
    gather = partial(gathered, learner, False)
    model, _ = await orders.give(Gather(), (), gather)
    assert model is not None
    scores = await canary.of(learner.version, model)
    return ToPublish(dict(narrowed(published(model), place.published_dtype)), scores)


class SentWeights(NamedTuple):
    """A finished sending, for the coordinator."""

    checksums: list[int]
    sent_bytes: int
    canary: list[float]


@dataclass(frozen=True)
class TransferToEngines:
    """A sender that knows what it sends: the weights of one rank as they are, and those of several
    as they were when they were gathered."""

    sender: Sender
    learner: Learner
    orders: RankOrders
    plan: Plan
    place: ActorContext
    canary: TrainerCanary | None

    @property
    def store(self) -> str:
        return self.sender.store

    async def join(self, message: Publish) -> None:
        deadline_s = self.place.config.publication.deadline_s
        await self.sender.join(message.epoch, message.world, self.plan, deadline_s)

    async def send(self, message: Publish) -> SentWeights:
        if message.direct and self.learner.rank.size > 1:
            found = await self._send_gathering(message)
            return SentWeights(found.checksums, found.sent_bytes, [])
        # both are of the learner's version: they change in the same step
        gather = partial(gathered, self.learner, message.average)
        model, average = await self.orders.give(Gather(message.average), (), gather)
        assert model is not None
        canary = await self.canary.of(self.learner.version, model) if self.canary else []
        found = await self.sender.send(
            message.epoch,
            message.world,
            self.plan,
            self._published(model),
            self.place.config.publication.deadline_s,
            None if average is None else self._published(average),
        )
        return SentWeights(found.checksums, found.sent_bytes, canary)

    async def _send_gathering(self, message: Publish) -> SendResult:
        """Send each tensor when it is gathered: the model is nowhere whole, and nothing is trained
        meanwhile."""
        deadline_s, rank = self.place.config.publication.deadline_s, self.learner.rank
        handoff = Handoff(deadline_s)
        own = partial(handoff.fill, rank.gathering(self.learner.model))
        epoch, world = message.epoch, message.world
        found: SendResult | TransferError
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.orders.give, Gather(), (), own)
            try:
                found = await self.sender.send(epoch, world, self.plan, handoff, deadline_s)
            except TransferError as error:  # out of the nursery by itself
                found = error
            finally:
                handoff.leave()
        if isinstance(found, TransferError):
            raise found
        return found

    def _published(self, model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
        return narrowed(published(model), self.place.published_dtype)
