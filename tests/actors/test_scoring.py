"""Each sealed rollout is judged once, the first sealed first, and the rollouts of a lost reward
actor before the rest."""

from __future__ import annotations

import random

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from memory_link import memory_links
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.peers import OUTBOX, Peer, Roster
from asyncrl.actors.coordinator.scoring import Scoring
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.messages import (
    GroupScoreRequest,
    GroupScoreResult,
    Hello,
    Message,
    NoVerdict,
    Scored,
    ScoreRequest,
    ScoreResult,
)
from asyncrl.runtime.ipc.waits import Pulse
from asyncrl.runtime.processes.standstill import RunClock

TOKEN = np.ones(1, np.int32).tobytes()


class Reward(Peer):
    """A reward actor that keeps what it is sent."""

    def __init__(self, index: int) -> None:
        super().__init__(Hello("reward", index, 0, 1), memory_links()[0])
        self.asked: list[int] = []
        self.finishes: dict[int, str] = {}
        self.buffers: dict[int, tuple[bytes, ...]] = {}

        self.groups: list[list[int]] = []

    def send(self, message: Message, *buffers: object) -> None:
        if isinstance(message, GroupScoreRequest):
            self.groups.append(message.rollouts)
            return
        assert isinstance(message, ScoreRequest)
        self.asked.append(message.rollout)
        self.finishes[message.rollout] = message.finish
        self.buffers[message.rollout] = tuple(map(bytes, buffers))  # type: ignore[call-overload]


async def test_verdicts_are_asked_in_order_once_and_again_first_where_an_actor_was_lost() -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    config = configured(reward={"concurrency": 1})  # two answers at a time
    scoring = Scoring(store, roster, config, RunClock())
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
    store.record(e.Sealed(2, 1, "length"))
    roster.add(second)
    scoring.dispatch()
    assert second.asked == [0, 1], "what was dropped or judged meanwhile is not asked"
    scoring.on_score_result(first, ScoreResult(0, Scored(1.0), 0.1))  # it was given up
    for number in (0, 1, 4, 2):
        scoring.on_score_result(second, ScoreResult(number, Scored(1.0), 0.1))
        scoring.dispatch()
    assert second.asked == [0, 1, 4, 2]
    assert second.finishes[4] == "stop" and second.finishes[2] == "length"
    assert store.experience.to_judge() == []


async def test_a_group_is_judged_by_one_set_of_rewards_whatever_its_verifier_becomes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    scoring, peer = Scoring(store, roster, configured(), RunClock()), Reward(0)
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
    assert scoring.failures.failed == 2 and scoring.failures.succeeded == 2
    assert [record.getMessage() for record in caplog.records] == [
        "an answer to prompt 7 has no verdict: other rewards: 0 of them, where others of the group "
        "have 2 (1 of 2 so far)"
    ]


async def test_a_verifier_gets_the_reply_and_all_that_the_model_had_before_it() -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    scoring, peer = Scoring(store, roster, configured(), RunClock()), Reward(0)
    roster.add(peer)

    def ids(*tokens: int) -> bytes:
        return np.array(tokens, np.int32).tobytes()

    def answered(number: int, tokens: bytes) -> None:
        store.record(e.Leased(number, "rollout-0", 1))
        store.record(e.Extended(number, 1, 0, 0, tokens, bytes(len(tokens))))

    store.record(e.Published(0))
    store.record(e.Admitted(0, 0, 1, "train", 0, ids(1, 2), 9))
    answered(0, ids(3, 4))
    store.record(e.Sealed(0, 1, "stop"))
    scoring.dispatch()
    assert peer.buffers[0] == (ids(3, 4), ids(1, 2))

    scoring = Scoring(store, roster, configured(agent={"run": "m:Game"}), RunClock())
    store.record(e.Admitted(1, 1, 1, "train", 0, ids(1, 2), 9, played=True))
    store.record(e.Begun(1, "agents-0", 1))
    for call, after, given, said in [
        (2, None, ids(1, 2), ids(3)),
        (3, (2, 3), ids(9), ids(4, 5)),
    ]:
        store.record(e.Called(1, 1, call, after, given, call, 9, 1.0))
        answered(call, said)
        store.record(e.Answered(call, 1, "stop"))
    store.record(e.Sealed(1, 1, "stop"))
    scoring.dispatch()
    assert peer.buffers[1] == (ids(4, 5), ids(1, 2, 3, 9))


async def test_more_answers_at_once_than_an_outbox_holds_cut_nobody_off() -> None:
    due = Pulse()
    store, roster = EventStore(Experience(), MemoryLog()), Roster(due.set)
    scoring = Scoring(store, roster, configured(reward={"concurrency": 4 * OUTBOX}), RunClock())
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


def sealed(store: EventStore, count: int) -> None:
    """So many rollouts, each of a prompt of its own, wait for a verdict."""
    for number in range(count):
        store.record(e.Admitted(number, number, 1, "train", 10 + number, TOKEN, 4, None, None))
        store.record(e.Leased(number, "rollout-0", 1))
        store.record(e.Sealed(number, 1, "stop"))


async def test_answers_go_to_the_one_who_has_the_fewest_and_no_further_than_its_room() -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    scoring = Scoring(store, roster, configured(reward={"concurrency": 2}), RunClock())
    sealed(store, 12)
    rewards = [Reward(0), Reward(1)]
    for peer in rewards:
        roster.add(peer)
    scoring.dispatch()
    assert [peer.asked for peer in rewards] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [scoring.held(peer.name) for peer in rewards] == [4, 4] and scoring.held("nobody") == 0
    scoring.on_score_result(rewards[1], ScoreResult(3, Scored(1.0), 0.1))
    scoring.dispatch()
    assert rewards[0].asked[4:] == [] and rewards[1].asked[4:] == [8]


async def test_who_owes_a_verdict_for_longer_than_all_it_had_before_can_take_is_named(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    config = configured(task={"verdict_s": 5.0}, reward={"concurrency": 1})
    scoring, began = Scoring(store, roster, config, RunClock()), trio.current_time()
    first, second = Reward(0), Reward(1)
    assert scoring.overdue(began + 1e9) is None, "nobody owes anything"
    sealed(store, 3)
    roster.add(first)
    scoring.dispatch()  # two answers
    await trio.sleep(7.0)
    roster.add(second)
    scoring.dispatch()
    # 2 answers before it and its own, each of 5 s and once more for a lost worker; and 30 s
    patience_s = 2 * 3 * 5.0 + 30.0
    assert scoring.overdue(began + patience_s) is None
    assert scoring.overdue(began + patience_s + 0.1) == "reward-0"
    for number in (0, 1):
        scoring.on_score_result(first, ScoreResult(number, Scored(1.0), 0.1))
    assert scoring.overdue(began + patience_s + 7.0) is None
    assert scoring.overdue(began + patience_s + 7.1) == "reward-1"


async def test_the_slowest_verdict_the_last_one_and_the_commonest_complaint_are_known(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    scoring, peer = Scoring(store, roster, configured(), RunClock()), Reward(0)
    assert scoring.slowest[1] == -1 and not scoring.failures.counts
    roster.add(peer)
    sealed(store, 5)
    scoring.dispatch()
    said = [
        (Scored(1.0), 0.1),
        (NoVerdict("raised: ValueError: 3"), 0.7),
        (NoVerdict("deadline"), 0.2),
        (NoVerdict("raised: ValueError: 4"), 0.3),
    ]
    for number, (verdict, seconds) in enumerate(said):
        await trio.sleep(2.0)
        scoring.on_score_result(peer, ScoreResult(number, verdict, seconds))
        assert scoring.last_activity == trio.current_time()
    await trio.sleep(2.0)
    scoring.on_score_result(Reward(1), ScoreResult(4, Scored(1.0), 9.0))  # it was not asked
    assert scoring.last_activity == trio.current_time() - 2.0
    assert scoring.slowest == (0.7, 11), "of the prompt of rollout 1"
    assert scoring.failures.counts == {"raised: ValueError: 4": 2, "deadline": 1}


async def test_time_in_which_nobody_could_be_heard_puts_off_what_is_owed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    clock = RunClock()
    scoring = Scoring(store, roster, configured(task={"verdict_s": 5.0}), clock)
    sealed(store, 1)
    roster.add(Reward(0))
    scoring.dispatch()
    await clock.sleep_until(trio.current_time() + 40.0, stopped=True)
    await trio.sleep(scoring.patience_s)
    assert scoring.overdue(clock.now()) is None
    await trio.sleep(0.1)
    assert scoring.overdue(clock.now()) == "reward-0"


@settings(max_examples=150, deadline=None)
@drawn(st.randoms(use_true_random=False), st.integers(1, 5))
async def test_a_group_is_judged_once_whole_and_by_all_verdicts_or_none(
    draw: random.Random, size: int
) -> None:
    """Members are sealed and buried in any order, actors are lost, verdicts are missing, and the
    coordinator is lost between any two events of the journal: every sealed member has one verdict,
    and no group is asked about before its last member is there, or held after it."""
    config = configured(
        task={"name": "jsonl", "path": "d.jsonl", "verifier": "judge"},
        judge={"url": "http://h/v1", "model": "m", "members": "scored"},
    )
    store, roster = EventStore(Experience(), MemoryLog()), Roster(lambda: None)
    groups, scoring = 4, Scoring(store, roster, config, RunClock())
    for number in range(groups):
        first = number * size
        split = "train" if number else "evaluation"
        store.record(e.Admitted(number, first, size, split, number, TOKEN, 4, None, None))
    left = list(range(groups * size))
    draw.shuffle(left)
    peer, starts = Reward(0), 0
    roster.add(peer)
    while True:
        if left and draw.random() < 0.6:
            rollout = left.pop()
            store.record(e.Leased(rollout, "rollout-0", 1))
            if draw.random() < 0.3:
                store.record(e.Requeued(rollout, 1, "gone"))
                store.record(e.Buried(rollout, "attempts"))
            else:
                store.record(e.Sealed(rollout, 1, "stop"))
        scoring.dispatch()
        for question in peer.groups:
            of = {store.experience.rollouts[number].group for number in question}
            (group,) = of
            assert all(m.id not in left for m in store.experience.groups[group].members)
        if draw.random() < 0.2 and starts < 20:  # the reward actor, or the coordinator, is lost
            starts += 1
            if draw.random() < 0.5:
                roster.remove(peer)
                scoring.lose(peer)
            else:
                roster = Roster(lambda: None)
                scoring = Scoring(store, roster, config, RunClock())
            peer = Reward(starts)
            roster.add(peer)
            continue
        for question in peer.groups:
            verdicts = [
                (number, draw.choice([Scored(0.25), NoVerdict("judge timeout")]))
                for number in question
            ]
            scoring.on_group_result(peer, GroupScoreResult(verdicts, 0.1))
        for number in peer.asked:
            scoring.on_score_result(peer, ScoreResult(number, Scored(1.0), 0.1))
        peer.groups, peer.asked = [], []
        if not left and not scoring.pending:
            break
    assert store.experience.to_judge() == []
    assert len(store.experience.groups) == groups
    assert all(group.complete for group in store.experience.groups.values())
