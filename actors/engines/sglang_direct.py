"""Direct publications into SGLang servers: a rollout actor's part, and what the trainer computes.
Invariant: the trainer's digest is answered with only when every server of the actor was found to
hold what the digest is of.

Servers take the weights from the trainer themselves (`asyncrl.engines.sglang.direct_load`); here
they are asked to, in step with the trainer (`weightsync.server_meeting`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import trio
from torch import Tensor

from asyncrl.engines.servers.errors import RequestRefused
from asyncrl.engines.servers.gather import gather
from asyncrl.engines.servers.server_checksums import Expected, WrongWeights
from asyncrl.engines.sglang.direct_engine import DirectSglangEngine
from asyncrl.engines.sglang.direct_load import (
    DirectLoad,
    ServerPlace,
    WantedOfServer,
    expected_of,
)
from asyncrl.ipc.messages import Prepare
from weightsync.buckets import Plan
from weightsync.errors import TransferError
from weightsync.group import Worker
from weightsync.server_group import ServerBucket, cut
from weightsync.server_meeting import MeetingAnswer, ServerGo, ServerMeeting

logger = logging.getLogger(__name__)

T = TypeVar("T")


def compute(wanted: bytes, weights: dict[str, Tensor]) -> bytes:
    """The hashes that an actor's servers must give of `weights`: the trainer's part, for a worker
    thread."""
    servers = msgspec.json.decode(wanted, type=list[WantedOfServer])
    return msgspec.json.encode([expected_of(server, weights) for server in servers])


class ServerReception:
    """A `DirectReceive` (`actors.direct_reception`) of an engine's servers. `parameters` are those
    of the model as they are sent, by name; their numbers are not read."""

    def __init__(
        self,
        engine: DirectSglangEngine,
        parameters: Mapping[str, Tensor],
        bucket_bytes: int,
        deadline_s: float,
    ) -> None:
        self._servers: Sequence[DirectLoad] = engine.servers
        self._plan = Plan.of(parameters, bucket_bytes)
        self._buckets: list[ServerBucket] = cut(parameters, bucket_bytes)
        self._deadline_s = deadline_s
        self._worker = Worker()
        self._go: tuple[int, ServerGo] = (-1, ServerGo())

    async def join(self, message: Prepare) -> None:
        """Have the servers join the trainer's group."""
        rank = message.rank
        async with self._worker.turn(self._deadline_s) as job:
            meeting = await self._run(
                lambda: ServerMeeting(job, message.store, message.publication)
            )
            offer = await self._run(lambda: meeting.offer(self._plan, rank))
            wanted = await gather(*(server.wanted for server in self._servers))
            ranks = [server.ranks for server in wanted]
            answer = MeetingAnswer(sum(ranks), msgspec.json.encode(wanted))
            await self._run(lambda: meeting.answer(answer, rank))
            go = await self._run(lambda: meeting.wait(rank))
            job.doing = "waiting for the servers to join the trainer's group"
            places = [
                ServerPlace(
                    offer.host,
                    offer.port,
                    go.world,
                    go.first + sum(ranks[:i]),
                    offer.name,
                    offer.backend,
                )
                for i in range(len(ranks))
            ]
            await _refused_as_failed(
                *(
                    partial(server.join, place)
                    for server, place in zip(self._servers, places, strict=True)
                )
            )
        self._go = message.publication, go

    async def receive(self, message: Prepare, weights: Mapping[str, Tensor]) -> list[int]:
        """Have the servers take the weights, and compare them; the trainer's digest where all have
        them, and nothing where one has others."""
        publication, go = self._go
        if publication != message.publication:
            raise TransferError(f"publication {message.publication} was not joined")
        hashes = msgspec.json.decode(go.computed, type=list[Expected])
        try:
            with trio.fail_after(self._deadline_s):
                await _refused_as_failed(
                    *(
                        partial(server.receive, self._buckets, message.version, of_server)
                        for server, of_server in zip(self._servers, hashes, strict=True)
                    )
                )
        except trio.TooSlowError:
            raise TransferError(f"not received within {self._deadline_s:g} s") from None
        except WrongWeights as wrong:
            logger.error("version %d is not what was sent: %s", message.version, wrong)
            return []
        return [go.digest]

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._worker.run(work, _nothing)


async def _refused_as_failed(*calls: Callable[[], Awaitable[None]]) -> None:
    """Make the calls at once. A server that refuses one is alive: its group has failed."""
    try:
        await gather(*calls)
    except RequestRefused as refusal:
        raise TransferError(str(refusal)) from refusal


def _nothing() -> None:
    """Nothing is open."""
