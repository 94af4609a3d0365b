"""The direct transport: one broadcast from the trainer into the weights that engines decode with,
while they are paused. There is no second copy of a model, neither in an engine's process nor, with
several ranks, in the trainer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from torch import Tensor

from asyncrl.messages import Prepare, Publish
from asyncrl.weightsync.broadcast import GroupReceiver, GroupSender
from asyncrl.weightsync.direct_weights import DirectWeights
from asyncrl.weightsync.staged import StagedReceiver, StagedSender
from asyncrl.weightsync.transport import EngineSide, Received, Sent, TrainerSide, Transport


class DirectSender(StagedSender):
    """The trainer's end. The weights of several ranks are sent as they are gathered, and nothing is
    trained meanwhile."""

    async def send(self, message: Publish, /) -> Sent:
        if self._source.sharded:
            return await self._send_gathered(message, beside=False)
        return await super().send(message)


class DirectReceiver(StagedReceiver):
    """A rollout actor's end; the engine's weights are always the same tensors."""

    _weights: DirectWeights | None = None

    async def receive(self, message: Prepare, own: Mapping[str, Tensor]) -> Received:
        if self._weights is None:
            self._weights = DirectWeights(self._side.plan, own)
        group = message.store, message.epoch, message.rank, message.world
        checksums = await self._broadcast.receive_direct(*group, self._weights, self._deadline_s)
        return Received(checksums)


class Direct(Transport):
    """`publication.path = "direct"`, into an engine in the rollout actor's process."""

    @classmethod
    @asynccontextmanager
    async def open_sender(cls, side: TrainerSide) -> AsyncIterator[DirectSender]:
        publication = side.config.publication
        async with GroupSender.open(publication.host, side.store) as broadcast:
            yield DirectSender(broadcast, side.source, side.deadline_s)

    @classmethod
    @asynccontextmanager
    async def open_receiver(cls, side: EngineSide) -> AsyncIterator[DirectReceiver]:
        async with GroupReceiver.open() as broadcast:
            yield DirectReceiver(broadcast, side)
