"""Each sealed rollout is judged once, the first sealed first, and the rollouts of a lost reward
actor before the rest."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing
from scripted_parts import MemoryLog
from scripted_world import configured

from actors.coordinator.event_store import EventStore
from actors.coordinator.peers import OUTBOX, Peer, Roster
from actors.coordinator.scoring import Scoring
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.ipc.link import memory_links
from asyncrl.ipc.messages import Hello, Message, Scored, ScoreRequest, ScoreResult
from asyncrl.ipc.waits import Pulse

TOKEN = np.ones(1, np.int32).tobytes()


class Reward(Peer):
    """A reward actor that keeps what it is sent."""

    def __init__(self, index: int) -> None:
        super().__init__(Hello("reward", index, 0, 1), memory_links()[0])
        self.asked: list[int] = []

    def send(self, message: Message, *buffers: object) -> None:
        assert isinstance(message, ScoreRequest)
        self.asked.append(message.rollout)


async def test_verdicts_are_asked_in_order_once_and_again_first_where_an_actor_was_lost() -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    scoring = Scoring(store, roster, configured(reward={"concurrency": 1}))  # two answers at a time
    for number in range(6):
        store.record(e.Admitted(number, number, 1, "train", number, TOKEN, 4, None, None))
    order = [3, 0, 5, 1, 4]
    for number in order:
        store.record(e.Leased(number, "rollout-0", 1))
        store.record(e.Sealed(number, 1, "stop"))
    scoring.dispatch()  # nobody is there
    first, second = Reward(0), Reward(1)
    roster.add(first)
    scoring.dispatch()
    scoring.dispatch()
    assert first.asked == [3, 0]

    store.record(e.Dropped(5, "stale"))
    scoring.on_score_result(first, ScoreResult(3, Scored(1.0), 0.1))
    roster.remove(first)
    scoring.lose(first)
    store.record(e.Leased(2, "rollout-0", 1))
    store.record(e.Sealed(2, 1, "stop"))
    roster.add(second)
    scoring.dispatch()
    assert second.asked == [0, 1], "what was dropped or judged meanwhile is not asked"
    scoring.on_score_result(first, ScoreResult(0, Scored(1.0), 0.1))  # it was given up
    for number in (0, 1, 4, 2):
        scoring.on_score_result(second, ScoreResult(number, Scored(1.0), 0.1))
        scoring.dispatch()
    assert second.asked == [0, 1, 4, 2]
    assert store.experience.to_judge() == []


async def test_a_group_is_judged_by_one_set_of_rewards_whatever_its_verifier_becomes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    scoring, peer = Scoring(store, roster, configured()), Reward(0)
    roster.add(peer)
    store.record(e.Admitted(0, 0, 4, "train", 7, TOKEN, 4, None, None))
    for number in range(4):
        store.record(e.Leased(number, "rollout-0", 1))
        store.record(e.Sealed(number, 1, "stop"))
    scoring.dispatch()
    for number, verdict in enumerate(
        [
            Scored(1.5, [1.0, 0.5]),
            Scored(1.0),
            Scored(1.0, [1.0, 0.0, 0.0]),
            Scored(0.5, [0.0, 0.5]),
        ]
    ):
        scoring.on_score_result(peer, ScoreResult(number, verdict, 0.1))
    assert store.experience.groups[0].parts == [[1.0, 0.5], [0.0, 0.5]]
    assert scoring.no_verdicts == {"other rewards": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "an answer to prompt 7 has no verdict: other rewards: 0 of them, where others of the group "
        "have 2; others for the same reason are "
        "only counted"
    ]


async def test_more_answers_at_once_than_an_outbox_holds_cut_nobody_off() -> None:
    due = Pulse()
    store, roster = EventStore(Experience(), MemoryLog()), Roster(due.set)
    scoring = Scoring(store, roster, configured(reward={"concurrency": 4 * OUTBOX}))
    store.record(e.Admitted(0, 0, 3 * OUTBOX, "train", 0, TOKEN, 4, None, None))
    for number in range(3 * OUTBOX):
        store.record(e.Leased(number, "rollout-0", 1))
        store.record(e.Sealed(number, 1, "stop"))
    ours, theirs = memory_links()
    peer = Peer(Hello("reward", 0, 0, 1), ours)
    roster.add(peer)

    async def pump() -> None:
        while True:
            scoring.dispatch()
            await due.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        assert 0 < scoring.held("reward-0") < OUTBOX and not peer.scope.cancel_called
        nursery.start_soon(peer.write)
        for number in range(3 * OUTBOX):  # without an answer to any
            message, _ = await theirs.receive()
            assert isinstance(message, ScoreRequest) and message.rollout == number
        nursery.cancel_scope.cancel()
    assert scoring.held("reward-0") == 3 * OUTBOX and not peer.scope.cancel_called
