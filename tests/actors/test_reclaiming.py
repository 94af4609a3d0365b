"""Taking back from engines: who is asked, once, and what counts as a failed attempt."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import trio
import trio.testing
from memory_link import memory_links
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.engine_pool import EngineHandle, EnginePool
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import ENOUGH, LeaseTable
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.experience import events as e
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.experience import Experience
from asyncrl.messages import Hello, Interrupt, Message, Split

TOKEN = np.ones(1, np.int32).tobytes()
LEASE_S = 50.0


class Engine(Peer):
    """A rollout actor that keeps what it is asked to give back."""

    def __init__(self, index: int) -> None:
        super().__init__(Hello("rollout", index, 0, 1), memory_links()[0])
        self.asked: list[list[int]] = []

    def send(self, message: Message, *buffers: object) -> None:
        assert isinstance(message, Interrupt)
        self.asked.append(list(message.rollouts))


class Parts:
    """Two engines of four slots, and rollouts of four tokens that they are given."""

    def __init__(self, **rollout: object) -> None:
        self.store = EventStore(Experience(), MemoryLog())
        self.pool, self.leases = EnginePool(), LeaseTable(LEASE_S)
        self.reclaiming = Reclaiming(
            self.store, self.pool, self.leases, configured(rollout=rollout)
        )
        self.peers = [Engine(0), Engine(1)]
        for peer in self.peers:
            self.pool.add(EngineHandle(peer, slots=4))

    def give(self, engine: int, count: int, split: Split = "train") -> list[int]:
        """Lease so many new rollouts to an engine."""
        x = self.store.experience
        first, version = x.next_rollout, None if split == "train" else 0
        self.store.record(
            e.Admitted(x.next_group, first, count, split, x.prompts[split], TOKEN, 4, version)
        )
        given = list(range(first, first + count))
        for number in given:
            self.lease(number, engine, split)
        return given

    def lease(self, number: int, engine: int, split: Split = "train") -> None:
        rollout = self.store.experience.rollouts[number]
        handle = self.pool.get(f"rollout-{engine}")
        assert handle is not None
        self.store.record(e.Leased(number, handle.name, rollout.attempt + 1))
        self.leases.give(number, rollout.attempt, rollout.tokens, trio.current_time())
        self.pool.hold(handle, number, split)

    def stream(self, number: int) -> None:
        rollout = self.store.experience.rollouts[number]
        self.store.record(e.Extended(number, rollout.attempt, 0, rollout.tokens, TOKEN, TOKEN))

    def status(self, number: int) -> tuple[RolloutStatus, int]:
        rollout = self.store.experience.rollouts[number]
        return rollout.status, rollout.failures


WAITS = RolloutStatus.WAITING


async def test_each_engine_is_asked_once_for_what_it_holds_of_a_split() -> None:
    parts = Parts()
    mine, held_out = parts.give(0, 2), parts.give(0, 1, "evaluation")
    others = parts.give(1, 1)
    first, second = parts.peers
    for _ in range(3):
        parts.reclaiming.park("train")
    assert (first.asked, second.asked) == ([mine], [others])
    later = parts.give(0, 1)
    parts.reclaiming.park("train")
    assert (first.asked, second.asked) == ([mine, later], [others]), "only what is new"
    parts.reclaiming.park("evaluation")
    assert first.asked[2:] == [held_out]


async def test_what_was_asked_for_is_no_failed_attempt_and_may_be_asked_for_again() -> None:
    parts = Parts(attempts=3)
    asked, unasked = parts.give(0, 1)[0], parts.give(1, 1)[0]
    second = parts.pool.get("rollout-1")
    assert second is not None
    first = parts.peers[0]
    for _ in range(2):
        parts.pool.release("rollout-1", unasked, "train")  # nobody asks for it
        parts.reclaiming.park("train")
        parts.pool.hold(second, unasked, "train")
        rollouts = parts.store.experience.rollouts
        parts.reclaiming.interrupted(rollouts[asked], ())
        parts.reclaiming.interrupted(rollouts[unasked], ())
        parts.lease(asked, 0)
        parts.lease(unasked, 1)
    assert first.asked == [[asked], [asked]]
    assert parts.status(asked) == (RolloutStatus.LEASED, 0)
    assert parts.status(unasked) == (RolloutStatus.LEASED, 2)


async def test_a_lease_that_brought_a_token_or_had_no_slot_has_not_failed(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    parts = Parts(attempts=2)
    given = parts.give(0, 5)  # four slots: the last one is queued
    parts.stream(given[0])
    handle = parts.pool.remove("rollout-0")
    assert handle is not None
    # The engine is out of the pool, and its leases still say who was there first.
    parts.reclaiming.lose(handle)
    assert [parts.status(number) for number in given] == [
        (WAITS, 0),
        (WAITS, 1),
        (WAITS, 1),
        (WAITS, 1),
        (WAITS, 0),
    ]
    for number in given:
        parts.lease(number, 1)
    parts.stream(given[1])
    await trio.sleep(LEASE_S)
    silent = parts.reclaiming.expire(trio.current_time(), {})
    assert silent == ["rollout-1"]
    live = parts.store.experience.rollouts
    assert [number in live for number in given] == [True, True, False, False, True]
    assert parts.status(given[0]) == (WAITS, 1), "its second lease brought nothing"
    assert parts.status(given[1]) == (WAITS, 1), "and this one's did"
    assert parts.status(given[4]) == (WAITS, 0), "it was queued again"
    buried = [event for event in parts.store.log.events if isinstance(event, e.Buried)]
    assert buried == [e.Buried(number, "lease_expired") for number in given[2:4]]
    assert len(caplog.records) == 2 and not parts.pool.held["train"]
    assert parts.peers[1].asked == [given], "the engine is told of all that ran out"


async def test_an_engine_that_streamed_since_its_last_lease_is_not_silent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = Parts()
    early = parts.give(0, 1) + parts.give(1, 1)
    await trio.sleep(10.0)
    late = parts.give(0, 1)
    await trio.sleep(LEASE_S - 10.0)
    assert parts.reclaiming.expire(trio.current_time() - 0.1, {}) == []
    streamed = {"rollout-0": 1.0, "rollout-1": 0.0}
    assert parts.reclaiming.expire(trio.current_time(), streamed) == ["rollout-1"]
    rollouts = parts.store.experience.rollouts
    assert [parts.reclaiming.late_engine(rollouts[number]) for number in early] == [
        "rollout-0",
        "rollout-1",
    ]
    assert parts.reclaiming.late_engine(rollouts[early[0]]) == "", "it is told once"
    await trio.sleep(10.0)
    assert parts.reclaiming.expire(trio.current_time(), streamed) == ["rollout-0"]
    assert parts.peers[0].asked == [early[:1], late]


async def test_what_is_given_up_is_stopped_where_it_is() -> None:
    parts = Parts()
    [number] = parts.give(1, 1)
    parts.reclaiming.give_up(parts.store.experience.rollouts[number], "nan")
    assert [peer.asked for peer in parts.peers] == [[], [[number]]]
    assert number not in parts.store.experience.rollouts and not parts.pool.held["train"]
    assert parts.leases.oldest(1) == []


async def test_a_lease_that_ran_out_counts_for_later_deadlines_only_if_it_streamed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = Parts()
    given = parts.give(0, ENOUGH)
    await trio.sleep(LEASE_S)
    parts.reclaiming.expire(trio.current_time(), {})
    assert parts.leases.times.p95_s is None, "an engine that hangs says nothing of responses"
    for number in given:
        parts.lease(number, 1)
        parts.stream(number)
    await trio.sleep(LEASE_S)
    parts.reclaiming.expire(trio.current_time(), {})
    assert parts.leases.times.p95_s == LEASE_S


async def test_nothing_is_remembered_of_what_is_given_up_while_it_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = Parts()
    rollout = parts.store.experience.rollouts[parts.give(0, 1)[0]]
    await trio.sleep(LEASE_S)
    parts.reclaiming.expire(trio.current_time(), {})
    parts.reclaiming.give_up(rollout, "version_gone")
    assert parts.reclaiming.late_engine(rollout) == ""
    assert len(parts.peers[0].asked) == 1, "no engine has it, so none is told"
