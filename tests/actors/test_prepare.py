"""Every Prepare that a rollout actor reads is answered soon, whatever comes right behind it."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing
from memory_link import memory_links

from asyncrl.actors.reporting import Reporter
from asyncrl.actors.rollout_actor import rollout_actor
from asyncrl.messages import Abort, Message, Prepare, Prepared
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.reception import StagedReception
from asyncrl.weightsync.transport import Received

PREPARE = {"version": 3, "epoch": 0, "rank": 1, "world": 2, "store": "tcp://127.0.0.1:1"}


class _SilentEngine:
    """An engine that samples nothing."""

    slots = 4

    async def run(self, emit: object) -> None:
        await trio.sleep_forever()


class _Receiver:
    """Transfers by a script."""

    async def receive(self, message: Prepare, own: object) -> Received:
        if message.publication == 1:
            await trio.sleep_forever()  # its sender has given up
        if message.publication == 2:
            raise TransferError("the sender was lost")
        await trio.sleep(0.1)
        return Received([message.publication], {})


def _prepare(publication: int) -> Prepare:
    return Prepare(publication, **PREPARE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([_prepare(1), Abort(1)], {1: "aborted"}),
        ([_prepare(1), Abort(1), _prepare(3)], {1: "aborted", 3: ""}),
        ([_prepare(1), _prepare(3)], {1: "aborted", 3: ""}),
        ([_prepare(2), Abort(2), _prepare(1), Abort(1)], {2: "aborted", 1: "aborted"}),
        ([_prepare(2)], {2: "the sender was lost"}),
    ],
    ids=["aborted", "aborted, then another", "overtaken", "two aborted", "failed"],
)
async def test_a_prepare_is_answered_though_more_is_read_with_it(
    sent: list[Message], expected: dict[int, str], autojump_clock: trio.testing.MockClock
) -> None:
    here, there = memory_links()
    waits, answers = Waits(), dict[int, str]()
    async with trio.open_nursery() as nursery:
        for message in sent:  # before the actor reads
            await here.send(message)
        engine: Any = _SilentEngine()
        reception = StagedReception(engine, cast(Any, _Receiver()), there.send)
        nursery.start_soon(rollout_actor, there, engine, reception, Reporter(waits))
        with trio.move_on_after(2.0):
            while len(answers) < len(expected):
                message, _ = await here.receive()
                if isinstance(message, Prepared):
                    assert message.publication not in answers, "one answer"
                    answers[message.publication] = message.error
        nursery.cancel_scope.cancel()
    assert answers == expected
