"""The rollout actor: a nursery around an engine.

Invariant: it streams the tokens that its engine sampled, under the version that the engine said.

    leases     coordinator → engine.submit         (the engine queues those that have no slot yet)
    chunks     engine.run → coordinator            (one frame for all slots)
    weights    Prepare → receive, beside decoding → Prepared
               Commit → engine.load → Committed
               (or into the engine's own weights: `direct_reception`)

    told to end → Leaving → Interrupt → the last chunks → Drain → Drained

Nothing is kept here: a rollout's tokens are with the coordinator as soon as they are streamed. So
this process may be killed at any time; one that is told to end loses not even those under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import trio

from actors.direct_reception import DirectReceive, DirectReception
from actors.errors import CoordinatorLost
from actors.reporting import Reporter
from asyncrl.engines.protocol import (
    AveragingEngine,
    CanaryEngine,
    Chunk,
    DirectEngine,
    Engine,
    Request,
)
from asyncrl.ipc.link import Link
from asyncrl.ipc.messages import (
    Abort,
    ChunkHead,
    Chunks,
    Commit,
    Committed,
    Drain,
    Drained,
    EngineReady,
    Interrupt,
    Leases,
    Leaving,
    Prepare,
    Prepared,
    Quiesce,
    Resend,
    Unpin,
)
from weightsync.errors import TransferError

if TYPE_CHECKING:
    import torch


class Received(Protocol):
    """Weights that were received and are not served yet, and their checksums, those of an average
    last."""

    @property
    def weights(self) -> Mapping[str, torch.Tensor]: ...

    @property
    def average(self) -> Mapping[str, torch.Tensor] | None:
        """The average of these weights; None if none was sent."""
        ...

    @property
    def checksums(self) -> list[int]: ...


Receive = Callable[[Prepare], Awaitable[Received]]
"""Takes part in one broadcast. Raises TransferError."""


class _Staging:
    """The one publication that this actor receives, or has received and not committed."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._publication = -1
        self._staged: Received | None = None
        self._scope = trio.CancelScope()

    def begin(self, message: Prepare) -> trio.CancelScope:
        """Make `message` the publication that is received, at once, so that an abort that is read
        right after it finds it. Returns the scope to receive in."""
        self.abort()
        self._publication, self._scope = message.publication, trio.CancelScope()
        return self._scope

    async def prepare(self, message: Prepare, scope: trio.CancelScope) -> Prepared:
        """Receive the weights. Every Prepare has one answer, even if an abort or a newer
        publication ended it before it began."""
        with scope:
            await trio.lowlevel.checkpoint()
            try:
                staged = await self._receive(message)
            except TransferError as error:
                return Prepared(message.publication, [], str(error))
            if message.publication == self._publication:
                self._staged = staged
                return Prepared(message.publication, staged.checksums, "")
        return Prepared(message.publication, [], "aborted")

    def abort(self) -> None:
        self._scope.cancel()
        self._publication, self._staged = -1, None

    def take(self, publication: int) -> Received | None:
        """Take the weights of `publication`, once; None if they are not here."""
        if publication != self._publication:
            return None
        staged, self._staged = self._staged, None
        return staged


def requests(message: Leases, ids: memoryview) -> list[Request]:
    """The engine's requests for a frame of leases. `ids` is int32: for each lease its prompt, and
    then the response tokens that there are."""
    tokens = np.frombuffer(ids, np.int32)
    found, at = [], 0
    for lease in message.leases:
        end = at + lease.prompt_tokens + lease.prefix_tokens
        found.append(
            Request(
                rollout=lease.rollout,
                attempt=lease.attempt,
                key=lease.key,
                ids=tokens[at:end],
                prefix_tokens=lease.prefix_tokens,
                max_new_tokens=lease.max_new_tokens,
                temperature=lease.temperature,
                version=lease.version,
            )
        )
        at = end
    return found


async def _swap(engine: Engine, message: Commit, staged: Received) -> float:
    """Have the engine decode with what is staged, and keep what is to be kept. Returns the seconds
    for which decoding stood still."""
    version, average = message.version, staged.average
    if isinstance(engine, CanaryEngine):
        engine.expect(version, message.canary)
    if average is None:
        return await engine.load(version, staged.weights, pin=message.pin)
    assert isinstance(engine, AveragingEngine), "others are refused before a run"
    kept_s = await engine.keep(version, average)
    return kept_s + await engine.load(version, staged.weights)


async def rollout_actor(
    link: Link,
    engine: Engine,
    receive: Receive,
    reporter: Reporter,
    receive_direct: DirectReceive | None = None,
    *,
    told_to_end: Callable[[], Awaitable[object]] = trio.sleep_forever,
) -> None:
    """Serve the coordinator until it drains this actor, which it does soon after this process was
    `told_to_end`; with `receive_direct` a publication may go straight into the engine, which is a
    `DirectEngine` then. Raises the link's error if the link breaks, and CoordinatorLost if it ends
    before."""
    staging, direct = _Staging(receive), None
    if receive_direct is not None:
        assert isinstance(engine, DirectEngine), "others are refused before a run"
        direct = DirectReception(engine, receive_direct, link.send)

    async def emit(chunks: Sequence[Chunk]) -> None:
        heads = [
            ChunkHead(c.rollout, c.attempt, c.version, c.start, len(c.ids), c.finish)
            for c in chunks
        ]
        ids = np.concatenate([c.ids for c in chunks])
        behaviour = np.concatenate([c.behaviour for c in chunks])
        reporter.count("sampled_tokens", len(ids))
        await link.send(Chunks(heads), ids.data, behaviour.data)

    async def prepare(message: Prepare, scope: trio.CancelScope) -> None:
        await link.send(await staging.prepare(message, scope))

    async def commit(message: Commit) -> None:
        staged = staging.take(message.publication)
        if staged is not None:
            pause = await _swap(engine, message, staged)
            await link.send(Committed(message.publication, message.version, pause))

    async def leave() -> None:
        await told_to_end()
        await link.send(Leaving())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, emit)
        nursery.start_soon(reporter.run, link)
        await link.send(EngineReady(engine.slots))
        nursery.start_soon(leave)
        async for message, buffers in link:
            match message:
                case Leases():
                    engine.submit(requests(message, buffers[0]))
                case Interrupt(rollouts):
                    engine.interrupt(rollouts)
                case Prepare() if direct is not None and message.direct:
                    nursery.start_soon(direct.take_part, message, direct.begin(message))
                case Quiesce(publication) if direct is not None:
                    direct.quiesce(publication)
                case Commit() if direct is not None:
                    nursery.start_soon(direct.commit, message)
                case Abort(publication) if direct is not None:
                    direct.abort(publication)
                case Resend(publication) if direct is not None:
                    direct.resend(publication)
                case Prepare():
                    nursery.start_soon(prepare, message, staging.begin(message))
                case Commit():
                    nursery.start_soon(commit, message)
                case Abort():
                    staging.abort()
                case Unpin(version):
                    engine.unpin(version)
                case Drain():
                    break
                case _:
                    raise ValueError(
                        f"a rollout actor does not understand {type(message).__name__}"
                    )
        else:
            raise CoordinatorLost("a rollout actor")
        nursery.cancel_scope.cancel()
    await link.send(Drained())
