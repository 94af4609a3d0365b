"""The rollout actor: a nursery around an engine.

Invariant: it streams the tokens that its engine sampled, under the version that the engine reports.
A request that the engine refuses ends its own rollout, and nothing else.

    images     coordinator → keep                  (on another machine, before the first lease)
    leases     coordinator → engine.submit         (the engine queues those that have no slot yet;
                                                    one that it refuses ends as `refused`)
    chunks     engine.run → coordinator            (one frame for all slots)
    weights    Prepare, Quiesce, Commit, Abort, Resend → reception
    (`asyncrl.weightsync.reception`)

    told to end → Leaving → Interrupt → the last chunks → Drain → Drained

Nothing is kept here: a rollout's tokens are with the coordinator as soon as they are streamed. So
this process may be killed at any time; if it is told to end, not even tokens under way are lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.actors.errors import CoordinatorLost
from asyncrl.actors.reporting import Reporter
from asyncrl.engines.protocol import Chunk, Engine, Request, refusal
from asyncrl.escape import escaped
from asyncrl.messages import (
    Abort,
    ChunkHead,
    Chunks,
    Commit,
    Drain,
    Drained,
    EngineReady,
    Images,
    Interrupt,
    Leases,
    Leaving,
    Prepare,
    Quiesce,
    Resend,
    Unpin,
)
from asyncrl.runtime.ipc.link import Link
from asyncrl.weightsync.reception import Reception


def requests(message: Leases, ids: memoryview) -> list[Request]:
    """The engine's requests for a frame of leases. `ids` is int32: for each lease its prompt, and
    then its response tokens so far."""
    tokens = np.frombuffer(ids, np.int32)
    built, at = [], 0
    for lease in message.leases:
        end = at + lease.prompt_tokens + lease.prefix_tokens
        built.append(
            Request(
                rollout=lease.rollout,
                attempt=lease.attempt,
                images=lease.images,
                key=lease.key,
                ids=tokens[at:end],
                prefix_tokens=lease.prefix_tokens,
                max_new_tokens=lease.max_new_tokens,
                temperature=lease.temperature,
                version=lease.version,
            )
        )
        at = end
    return built


WHY = 400
"""Characters of the longest reason of a refusal."""


def submitted(engine: Engine, asked: Sequence[Request]) -> list[Chunk]:
    """Submit requests to an engine. Returns the ends of those that it refuses."""
    try:
        engine.submit(asked)
    except ValueError as error:
        if len(asked) == 1:
            return [refusal(asked[0], engine.version, str(error))]
        return [chunk for request in asked for chunk in submitted(engine, [request])]
    return []


def _routing(chunks: Sequence[Chunk]) -> NDArray[np.uint8] | None:
    """The routing that comes with some chunks, of as many bytes for each token; None where none of
    them has any."""
    parts = [c.routing for c in chunks if c.routing is not None and c.routing.size]
    return np.ascontiguousarray(np.concatenate(parts)).reshape(-1) if parts else None


def _parts(buffer: memoryview, sizes: Sequence[int]) -> Iterator[bytes]:
    """The parts of a buffer of so many bytes each."""
    at = 0
    for size in sizes:
        yield bytes(buffer[at : at + size])
        at += size


async def rollout_actor(
    link: Link,
    engine: Engine,
    reception: Reception,
    reporter: Reporter,
    *,
    told_to_end: Callable[[], Awaitable[object]] = trio.sleep_forever,
    keep: Callable[[bytes], object] = lambda _: None,
) -> None:
    """Serve the coordinator until it drains this actor, which it does soon after this process was
    `told_to_end`. `keep` stores an image where the engine reads it. Raises the link's error if the
    link breaks, and CoordinatorLost if it ends before."""

    async def emit(chunks: Sequence[Chunk]) -> None:
        heads = [
            ChunkHead(
                c.rollout,
                c.attempt,
                c.version,
                c.start,
                len(c.ids),
                c.finish,
                escaped(c.why, WHY),
                len(c.routing) if c.routing is not None and c.routing.size else 0,
            )
            for c in chunks
        ]
        ids = np.concatenate([c.ids for c in chunks])
        behaviour = np.concatenate([c.behaviour for c in chunks])
        reporter.count("sampled_tokens", len(ids))
        buffers = [ids.data, behaviour.data]
        if (routing := _routing(chunks)) is not None:
            buffers.append(routing.data)
        await link.send(Chunks(heads), *buffers)

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
                case Images(sizes):
                    for image in _parts(buffers[0], sizes):
                        keep(image)
                case Leases():
                    if refused := submitted(engine, requests(message, buffers[0])):
                        nursery.start_soon(emit, refused)
                case Interrupt(rollouts):
                    engine.interrupt(rollouts)
                case Prepare():
                    nursery.start_soon(reception.take_part, message, reception.begin(message))
                case Commit():
                    nursery.start_soon(reception.commit, message)
                case Quiesce() | Abort() | Resend():
                    reception.hear(message)
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
