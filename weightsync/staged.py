"""The staged transport: one broadcast from the trainer into memory beside each engine's own
weights, and of the average after it where that is evaluated. Engines decode meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio
from torch import Tensor

from asyncrl.messages import Prepare, Publish
from asyncrl.weightsync.arriving import while_gathered
from asyncrl.weightsync.broadcast import GroupReceiver, GroupSender
from asyncrl.weightsync.handoff import Handoff
from asyncrl.weightsync.transport import (
    EngineSide,
    Received,
    Sent,
    TrainerSide,
    Transport,
    WeightSource,
)


class StagedSender:
    """The trainer's end."""

    def __init__(self, broadcast: GroupSender, source: WeightSource, deadline_s: float) -> None:
        self._broadcast, self._source, self._deadline_s = broadcast, source, deadline_s

    @property
    def store(self) -> str:
        return self._broadcast.store

    async def join(self, message: Publish, /) -> None:
        epoch, world = message.epoch, message.world
        await self._broadcast.join(epoch, world, self._source.plan, self._deadline_s)

    async def send(self, message: Publish, /) -> Sent:
        if self._source.sharded:
            return await self._send_gathered(message, beside=True)
        # both are of the learner's version: they change in the same step
        gathered = await self._source.gather(message.average)
        sent = await self._broadcast.send(
            message.epoch,
            message.world,
            self._source.plan,
            gathered.weights,
            self._deadline_s,
            gathered.average,
        )
        return sent._replace(canary=gathered.canary)

    async def _send_gathered(self, message: Publish, *, beside: bool) -> Sent:
        """Send the weights of several ranks as they are gathered, `beside` training."""
        canary = await self._source.canary()

        def send(handoffs: Sequence[Handoff]) -> Awaitable[Sent]:
            return self._broadcast.send(
                message.epoch,
                message.world,
                self._source.plan,
                handoffs[0],
                self._deadline_s,
                handoffs[1] if message.average else None,
            )

        sent = await while_gathered(
            self._source, self._deadline_s, send, average=message.average, beside=beside
        )
        return sent._replace(canary=canary)


class StagedReceiver:
    """A rollout actor's end."""

    def __init__(self, broadcast: GroupReceiver, side: EngineSide) -> None:
        self._broadcast, self._side = broadcast, side
        self._deadline_s = side.deadline_s

    async def join(self, message: Prepare) -> None:
        group = message.store, message.epoch, message.rank, message.world
        await self._broadcast.join(*group, self._side.plan, self._deadline_s)

    async def receive(self, message: Prepare, own: Mapping[str, Tensor]) -> Received:
        group = message.store, message.epoch, message.rank, message.world
        received = await self._broadcast.receive(
            *group, self._side.plan, self._deadline_s, average=message.average
        )
        merge = self._side.merge
        return await trio.to_thread.run_sync(merge, received) if merge else received


class Staged(Transport):
    """`publication.path = "staged"`."""

    @classmethod
    @asynccontextmanager
    async def open_sender(cls, side: TrainerSide) -> AsyncIterator[StagedSender]:
        publication = side.config.publication
        async with GroupSender.open(
            publication.host, side.store, full_every=publication.full_every
        ) as broadcast:
            yield StagedSender(broadcast, side.source, side.deadline_s)

    @classmethod
    @asynccontextmanager
    async def open_receiver(cls, side: EngineSide) -> AsyncIterator[StagedReceiver]:
        async with GroupReceiver.open(full_every=side.config.publication.full_every) as broadcast:
            yield StagedReceiver(broadcast, side)
