"""Who judges what: each sealed rollout once, the first sealed first, and what a lost reward actor had before the rest."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing
from actor_world import MemoryLog, configured

from actors.coordinator.book import Book
from actors.coordinator.judgement import Judgement
from actors.coordinator.peers import OUTBOX, Peer, Roster
from asyncrl.experience import events as e
from asyncrl.experience.state import Experience
from asyncrl.link import memory_links
from asyncrl.messages import Hello, Judge, Judged, Message, Scored
from asyncrl.waits import Pulse

TOKEN = np.ones(1, np.int32).tobytes()


class Reward(Peer):
    """A reward actor that keeps what it is sent."""

    def __init__(self, index: int) -> None:
        super().__init__(Hello("reward", index, 0, 1), memory_links()[0])
        self.asked: list[int] = []

    def send(self, message: Message, *buffers: object) -> None:
        assert isinstance(message, Judge)
        self.asked.append(message.rollout)


async def test_verdicts_are_asked_in_order_once_and_again_first_where_an_actor_was_lost() -> None:
    book, roster = Book(Experience(), MemoryLog()), Roster(lambda: None)
    judgement = Judgement(book, roster, configured(run={"reward_concurrency": 1}))  # two answers at a time
    for number in range(6):
        book.record(e.Admitted(number, number, 1, "train", number, TOKEN, 4, None, None))
    order = [3, 0, 5, 1, 4]
    for number in order:
        book.record(e.Leased(number, "rollout-0", 1))
        book.record(e.Sealed(number, 1, "stop"))
    judgement.dispatch()  # nobody is there
    first, second = Reward(0), Reward(1)
    roster.add(first)
    judgement.dispatch()
    judgement.dispatch()
    assert first.asked == [3, 0]

    book.record(e.Dropped(5, "stale"))
    judgement.on_judged(first, Judged(3, Scored(1.0), 0.1))
    roster.remove(first)
    judgement.lose(first)
    book.record(e.Leased(2, "rollout-0", 1))
    book.record(e.Sealed(2, 1, "stop"))
    roster.add(second)
    judgement.dispatch()
    assert second.asked == [0, 1], "what was dropped or judged meanwhile is not asked"
    judgement.on_judged(first, Judged(0, Scored(1.0), 0.1))  # it was given up
    for number in (0, 1, 4, 2):
        judgement.on_judged(second, Judged(number, Scored(1.0), 0.1))
        judgement.dispatch()
    assert second.asked == [0, 1, 4, 2]
    assert book.experience.to_judge() == []


async def test_a_group_is_judged_by_one_set_of_rewards_whatever_its_verifier_becomes(caplog: pytest.LogCaptureFixture) -> None:
    book, roster = Book(Experience(), MemoryLog()), Roster(lambda: None)
    judgement, peer = Judgement(book, roster, configured()), Reward(0)
    roster.add(peer)
    book.record(e.Admitted(0, 0, 4, "train", 7, TOKEN, 4, None, None))
    for number in range(4):
        book.record(e.Leased(number, "rollout-0", 1))
        book.record(e.Sealed(number, 1, "stop"))
    judgement.dispatch()
    for number, verdict in enumerate([Scored(1.5, [1.0, 0.5]), Scored(1.0), Scored(1.0, [1.0, 0.0, 0.0]), Scored(0.5, [0.0, 0.5])]):
        judgement.on_judged(peer, Judged(number, verdict, 0.1))
    assert book.experience.groups[0].parts == [[1.0, 0.5], [0.0, 0.5]]
    assert judgement.no_verdicts == {"other rewards": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "an answer to item 7 has no verdict: other rewards: 0 of them, where others of the group have 2; others for the same reason are "
        "only counted"
    ]


async def test_more_answers_at_once_than_an_outbox_holds_cut_nobody_off() -> None:
    due = Pulse()
    book, roster = Book(Experience(), MemoryLog()), Roster(due.set)
    judgement = Judgement(book, roster, configured(run={"reward_concurrency": 4 * OUTBOX}))
    book.record(e.Admitted(0, 0, 3 * OUTBOX, "train", 0, TOKEN, 4, None, None))
    for number in range(3 * OUTBOX):
        book.record(e.Leased(number, "rollout-0", 1))
        book.record(e.Sealed(number, 1, "stop"))
    ours, theirs = memory_links()
    peer = Peer(Hello("reward", 0, 0, 1), ours)
    roster.add(peer)

    async def pump() -> None:
        while True:
            judgement.dispatch()
            await due.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        assert 0 < judgement.held("reward-0") < OUTBOX and not peer.scope.cancel_called
        nursery.start_soon(peer.write)
        for number in range(3 * OUTBOX):  # without an answer to any
            message, _ = await theirs.receive()
            assert isinstance(message, Judge) and message.rollout == number
        nursery.cancel_scope.cancel()
    assert judgement.held("reward-0") == 3 * OUTBOX and not peer.scope.cancel_called
