"""The transport into servers: one broadcast from the trainer to every rank of every server, while
they are paused; no rollout actor holds weights. Invariant: an actor answers with the trainer's
digest only when every one of its servers was found to hold what the digest is of.

    trainer   join    gather → canary → meet: plans, hashes, the group
              send    broadcast what was gathered; of several ranks it is gathered twice, and each
                      tensor let go when it is hashed, or sent
    actor     join    meet → its servers join the group
              receive its servers take each bucket (`direct_server`), in step with the trainer

What is computed of a version's weights (the servers' hashes, the canary) is computed before any
server is paused.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, Protocol, cast

import torch
import trio
from torch import Tensor

from asyncrl.engines.servers.errors import RequestRefused
from asyncrl.engines.servers.gather import gather
from asyncrl.messages import Prepare, Publish
from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.weightsync.arriving import while_gathered
from asyncrl.weightsync.buckets import DTYPES, Plan
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.handoff import Handoff
from asyncrl.weightsync.process_group import Worker
from asyncrl.weightsync.servers.direct_server import DirectServer, ServerPlace
from asyncrl.weightsync.servers.fp8_checkpoint import checkpoint_of
from asyncrl.weightsync.servers.meeting import MeetingAnswer, ServerGo, ServerMeeting
from asyncrl.weightsync.servers.server_checksums import WrongWeights
from asyncrl.weightsync.servers.server_group import cut
from asyncrl.weightsync.servers.servers_sender import ServersSender
from asyncrl.weightsync.transport import (
    EngineSide,
    Received,
    Sent,
    TrainerSide,
    Transport,
    WeightSource,
)

logger = logging.getLogger(__name__)


class ServersPublisher:
    """The trainer's end."""

    def __init__(
        self,
        sender: ServersSender,
        source: WeightSource,
        names: CheckpointNames,
        bucket_bytes: int,
        deadline_s: float,
    ) -> None:
        self._sender, self._source, self._names = sender, source, names
        self._bucket_bytes, self._deadline_s = bucket_bytes, deadline_s
        self._joined: _Joined | None = None

    @property
    def store(self) -> str:
        return self._sender.store

    async def join(self, message: Publish, /) -> None:
        self._joined, source = None, self._source
        number, actors = message.publication, (message.epoch, message.world - 1)
        if source.sharded:
            canary, shapes = await source.canary(), self._shapes()
            plan = Plan.of(shapes, self._bucket_bytes)

            def join(handoffs: Sequence[Handoff]) -> Awaitable[int]:
                arriving = self._names.streamed(handoffs[0])
                return self._sender.join(number, *actors, plan, arriving, self._deadline_s)

            digest = await while_gathered(source, self._deadline_s, join, beside=True)
            self._joined = _Joined(number, shapes, Sent([digest], 0, canary))
            return
        gathered = await source.gather()
        weights = await trio.to_thread.run_sync(
            lambda: dict(self._names.tensors(dict(gathered.weights)))
        )
        plan = Plan.of(weights, self._bucket_bytes)
        digest = await self._sender.join(number, *actors, plan, weights.items(), self._deadline_s)
        self._joined = _Joined(number, weights, Sent([digest], 0, gathered.canary))

    async def send(self, message: Publish, /) -> Sent:
        joined, self._joined = self._joined, None
        if joined is None or joined.publication != message.publication:
            raise TransferError(f"publication {message.publication} was not joined")
        if self._source.sharded:

            def send(handoffs: Sequence[Handoff]) -> Awaitable[int]:
                arriving = self._names.streamed(handoffs[0])
                return self._sender.send(joined.weights, self._deadline_s, arriving)

            count = await while_gathered(self._source, self._deadline_s, send, beside=False)
        else:
            count = await self._sender.send(joined.weights, self._deadline_s)
        return joined.sent._replace(sent_bytes=count)

    def _shapes(self) -> dict[str, Tensor]:
        """The tensors that servers are sent, without numbers."""
        published = (
            (spec.name, torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta"))
            for spec in self._source.plan.specs
        )
        return dict(self._names.tensors(dict(published)))


class _Joined(NamedTuple):
    """A publication that was joined: the weights, or of several ranks their shapes alone."""

    publication: int
    weights: Mapping[str, Tensor]
    sent: Sent


class HasServers(Protocol):
    """An engine whose weights are in its servers."""

    @property
    def servers(self) -> Sequence[DirectServer]: ...


class ServersReceiver:
    """A rollout actor's end: that of all its `servers`, which serve the same model."""

    def __init__(
        self,
        servers: Sequence[DirectServer],
        bucket_bytes: int,
        deadline_s: float,
    ) -> None:
        self._servers, self._deadline_s = servers, deadline_s
        tensors = servers[0].tensors
        self._plan, self._buckets = Plan.of(tensors, bucket_bytes), cut(tensors, bucket_bytes)
        self._worker = Worker()
        self._go: tuple[int, ServerGo] = (-1, ServerGo())

    async def join(self, message: Prepare) -> None:
        rank = message.rank
        async with self._worker.turn(self._deadline_s) as job:
            run = self._worker.run
            meeting = await run(lambda: ServerMeeting(job, message.store, message.publication))
            offer = await run(lambda: meeting.offer(self._plan, rank))
            answer = MeetingAnswer(await gather(*(server.wanted for server in self._servers)))
            await run(lambda: meeting.answer(answer, rank))
            go = await run(lambda: meeting.wait(rank))
            job.doing = "waiting for the servers to join the trainer's group"
            first, joins = go.first, list[Callable[[], Awaitable[None]]]()
            for server, wanted in zip(self._servers, answer.servers, strict=True):
                target = ServerPlace(
                    offer.host, offer.port, go.world, first, offer.name, offer.backend
                )
                joins.append(partial(server.join, target))
                first += wanted.ranks
            await _refused_as_failed(*joins)
        self._go = message.publication, go

    async def receive(self, message: Prepare, own: Mapping[str, Tensor]) -> Received:
        """Make the servers load the weights, and compare them; no checksum where one differs."""
        publication, go = self._go
        if publication != message.publication:
            raise TransferError(f"publication {message.publication} was not joined")
        try:
            with trio.fail_after(self._deadline_s):
                await _refused_as_failed(
                    *(
                        partial(server.receive, self._buckets, message.version, hashes)
                        for server, hashes in zip(self._servers, go.hashes, strict=True)
                    )
                )
        except trio.TooSlowError:
            raise TransferError(f"not received within {self._deadline_s:g} s") from None
        except WrongWeights as wrong:
            logger.error("version %d is not what was sent: %s", message.version, wrong)
            return Received([])
        return Received([go.digest])


async def _refused_as_failed(*calls: Callable[[], Awaitable[None]]) -> None:
    """Make the calls at once. A server that refuses one is alive: its group has failed."""
    try:
        await gather(*calls)
    except RequestRefused as refusal:
        raise TransferError(str(refusal)) from refusal


class IntoServers(Transport):
    """`publication.path = "direct"`, of an engine that has `servers`."""

    @classmethod
    @asynccontextmanager
    async def open_sender(cls, side: TrainerSide) -> AsyncIterator[ServersPublisher]:
        publication, servers = side.config.publication, side.config.engine.servers
        on_gpu = servers is not None and servers.settings.backend == "nccl"
        async with ServersSender.open(
            publication.host,
            side.store,
            bucket_bytes=publication.bucket_bytes,
            device="cuda:0" if on_gpu else "cpu",
        ) as sender:
            yield ServersPublisher(
                sender,
                side.source,
                checkpoint_of(side.model, publication.dtype),
                publication.bucket_bytes,
                side.deadline_s,
            )

    @classmethod
    @asynccontextmanager
    async def open_receiver(cls, side: EngineSide) -> AsyncIterator[ServersReceiver]:
        publication, servers = side.config.publication, cast(HasServers, side.engine).servers
        yield ServersReceiver(servers, publication.bucket_bytes, side.deadline_s)
