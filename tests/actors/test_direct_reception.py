"""A rollout actor in a direct publication: it stands still until everything has come and is
committed, and every Prepare has one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing
from memory_link import memory_links

from asyncrl.actors.reporting import Reporter
from asyncrl.actors.rollout_actor import rollout_actor
from asyncrl.messages import (
    Abort,
    Commit,
    Committed,
    Joined,
    Message,
    Prepare,
    Prepared,
    Quiesce,
    Quiesced,
    Resend,
)
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.reception import DirectReception
from asyncrl.weightsync.transport import Received


class _Engine:
    """An engine that says when it stands still, and what it goes on with."""

    slots, version = 4, None

    def __init__(self) -> None:
        self.said: list[str] = []
        self.still = False

    async def run(self, emit: object) -> None:
        await trio.sleep_forever()

    async def quiesce(self) -> Mapping[str, Any]:
        await trio.sleep(0.01)
        self.still = True
        return {}

    async def adopt(self, version: int, *, pin: bool = False) -> float:
        await trio.lowlevel.checkpoint()
        assert self.still and self.canary == (version, [0.25])
        self.still = False
        self.said.append(f"version {version}")
        return 0.5

    def resume(self) -> None:
        if self.still:
            self.still = False
            self.said.append("as before")

    def expect(self, version: int, canary: list[float]) -> None:
        self.canary = version, canary

    # a `DirectEngine` has these, too
    def submit(self, requests: object) -> None: ...
    def interrupt(self, rollouts: object) -> None: ...
    def unpin(self, version: int) -> None: ...
    async def load(self, version: int, weights: object, *, pin: bool = False) -> float: ...  # type: ignore[empty-body]


class _Receive:
    """Transfers by a script: of publication 1 the second half never comes, 2 fails."""

    async def join(self, message: Prepare) -> None:
        await trio.sleep(0.01)

    async def receive(self, message: Prepare, own: Mapping[str, Any]) -> Received:
        if message.publication == 1:
            await trio.sleep_forever()
        if message.publication == 2:
            raise TransferError("the sender was lost")
        await trio.sleep(0.01)
        return Received([message.publication])


def prepare(publication: int) -> Prepare:
    return Prepare(publication, 7, publication, 1, 2, "tcp://127.0.0.1:1", direct=True)


def joined(number: int) -> list[Message]:
    return [prepare(number), Joined(number)]


def still(number: int) -> list[Message]:
    return [*joined(number), Quiesce(number), Quiesced(number)]


def whole(number: int) -> list[Message]:
    commit: list[Message] = [Commit(number, 7, False, [0.25]), Committed(number, 7, 0.5)]
    return [*still(number), Prepared(number, [number], ""), *commit]


@pytest.mark.parametrize(
    ("talk", "said", "stands"),
    [
        (whole(3), ["version 7"], False),
        ([prepare(1), Abort(1), Prepared(1, [], "aborted")], [], False),
        ([*joined(1), Abort(1), Prepared(1, [], "aborted")], [], False),
        ([*joined(1), Quiesce(1), Abort(1), Prepared(1, [], "aborted")], [], False),
        ([*still(1), Abort(1), Prepared(1, [], "aborted")], ["as before"], False),
        ([*still(1), Resend(1), Prepared(1, [], "aborted")], [], True),
        ([*still(2), Prepared(2, [], "the sender was lost")], [], True),
        ([*still(2), Prepared(2, [], "the sender was lost"), Abort(2)], ["as before"], False),
        ([*still(2), Prepared(2, [], "the sender was lost"), Resend(2)], [], True),
        ([*still(1), Resend(1), Prepared(1, [], "aborted"), *whole(3)], ["version 7"], False),
        # what is torn stays so where the next one is aborted before it sends
        (
            [
                *(*still(1), Resend(1), Prepared(1, [], "aborted")),
                *(*still(4), Prepared(4, [4], ""), Abort(4)),
            ],
            [],
            True,
        ),
        ([*still(4), Prepared(4, [4], ""), Resend(4), Commit(4, 7, False)], [], True),
    ],
)
async def test_an_actor_goes_on_with_whole_weights_alone(
    talk: list[Message],
    said: list[str],
    stands: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """`talk` is what it is told, and what it must answer."""
    ours, theirs = memory_links()
    engine, heard = _Engine(), list[Message]()
    answers = (Joined, Quiesced, Prepared, Committed)

    async def listen() -> None:
        async for message, _ in ours:
            if isinstance(message, answers):
                heard.append(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        reception = DirectReception(engine, _Receive(), theirs.send)
        nursery.start_soon(rollout_actor, theirs, engine, reception, Reporter(Waits()))
        expected = list[Message]()
        for message in talk:
            if isinstance(message, answers):
                expected.append(message)
                await trio.sleep(0.1)
                assert heard[: len(expected)] == expected
            else:
                await ours.send(message)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert heard == expected and (engine.said, engine.still) == (said, stands)
