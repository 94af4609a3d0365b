"""The figures that a run shows, at any moment of it, against a recount of its timed events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from scripted_parts import MemoryLog
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.collect_status import collect_update
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.config.judging import AHEAD
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.explain.run_status import NAMED, RunStatus
from asyncrl.messages import Report, StatusUpdate, Wait

SOON = 0.05
"""Seconds between an event and the moment at which the coordinator has heard of it."""


class TimedLog(MemoryLog):
    """A journal in memory that knows when each event came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def append(self, event: e.AnyEvent) -> int:
        self.times.append(trio.current_time())
        return super().append(event)


@dataclass
class Lived:
    """A rollout as the events tell of it."""

    group: int
    status: str = "waiting"
    holder: str = ""
    attempt: int = 0
    since: float = 0.0
    tokens: int = 0


@dataclass
class Recount:
    """Figures of the events so far."""

    rollouts: dict[int, Lived] = field(default_factory=dict)
    splits: dict[int, str] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    committed: int | None = None
    generated: int = 0
    trained: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    last: dict[type, float] = field(default_factory=dict)

    @classmethod
    def of(cls, log: TimedLog) -> Recount:
        found = cls()
        for time, event in zip(log.times, log.events, strict=True):
            found.last[type(event)] = time
            found.count(time, event)
        return found

    def count(self, time: float, event: e.AnyEvent) -> None:
        match event:
            case e.Admitted():
                self.splits[event.group] = event.split
                if event.split == "train":
                    self.live.add(event.group)
                for number in range(event.first, event.first + event.size):
                    self.rollouts[number] = Lived(event.group)
            case e.Leased():
                one = self.rollouts[event.rollout]
                one.status, one.holder = "leased", event.holder
                one.attempt, one.since = event.attempt, time
            case e.Extended():
                self.rollouts[event.rollout].tokens += len(event.ids) // 4
                self.generated += len(event.ids) // 4
            case e.Requeued():
                self.rollouts[event.rollout].status = "waiting"
            case e.Sealed():
                self.rollouts[event.rollout].status = "sealed"
            case e.Judged():
                self.rollouts[event.rollout].status = "judged"
            case e.Taken():
                for number in event.rollouts:
                    self.rollouts[number].status = "taken"
                    self.begun.add(self.rollouts[number].group)
            case e.Trained():
                self.rollouts[event.rollout].status = "over"
                self.trained += event.trained
                self.discarded.update(event.discarded)
            case e.Dropped():
                self.live.discard(event.group)
                for one in self.rollouts.values():
                    if one.group == event.group:
                        one.status = "over"
                        self.discarded[event.reason] += one.tokens
            case e.Published():
                self.committed = event.version
                unfinished = {one.group for one in self.rollouts.values() if one.status != "over"}
                self.live &= unfinished
            case e.Checkpointed():
                pass
            case _:
                raise AssertionError(f"this run has no {event}")

    def of_status(self, *statuses: str, split: str = "") -> list[Lived]:
        return [
            one
            for one in self.rollouts.values()
            if one.status in statuses and split in ("", self.splits[one.group])
        ]

    @property
    def complete(self) -> int:
        unjudged = {one.group for one in self.rollouts.values() if one.status != "judged"}
        groups = {group for group, split in self.splits.items() if split == "train"}
        return len(groups - unjudged)


def agrees(status: RunStatus, update: StatusUpdate, log: TimedLog, began: float) -> None:
    """Hold every figure of a status against the events."""
    now, found = trio.current_time(), Recount.of(log)
    counts = Counter(one.status for one in found.rollouts.values())
    del counts["over"]
    assert status.rollouts == counts
    assert status.groups.live == len(found.live) <= status.groups.max_live
    assert status.groups.complete == found.complete
    assert (status.tokens.generated, status.tokens.trained) == (found.generated, found.trained)
    assert status.tokens.discarded == +found.discarded
    assert status.committed == found.committed
    assert status.seconds == update.seconds == pytest.approx(now - began)
    for seconds, kinds in [
        (status.token_s, (e.Extended, e.Sealed)),
        (status.verdict_s, (e.Judged,)),
        (status.step_s, (e.Trained,)),
    ]:
        last = max((found.last[kind] for kind in kinds if kind in found.last), default=None)
        if last is not None:
            assert seconds == pytest.approx(now - last, abs=SOON)
    leased = sorted(found.of_status("leased"), key=lambda one: one.since)
    assert [one.seconds for one in status.awaited] == pytest.approx(
        [now - one.since for one in leased[:NAMED]]
    )
    for awaited in status.awaited:
        one = found.rollouts[awaited.rollout]
        assert (awaited.holder, awaited.attempt, awaited.tokens) == (
            one.holder,
            one.attempt,
            one.tokens,
        )
        assert awaited.deadline_s == pytest.approx(50.0)
    holds = {actor.name: actor.holds for actor in status.actors if actor.here}
    for name, number in Counter(one.holder for one in leased).items():
        assert holds[name] == number
    if "trainer-0" in holds:
        assert holds["trainer-0"] == counts["taken"]
    for actor in status.actors:
        if actor.role == "rollout" and actor.version is not None and status.publication is None:
            assert actor.version == status.committed
            assert actor.streamed_s is None or actor.streamed_s >= status.token_s
    assert all(0.0 < share <= 1.0 for actor in status.actors for share in actor.idle.values())
    queued = found.of_status("sealed", "judged", split="train")
    assert update.queue_items == len(queued)
    assert update.queue_bytes == 8 * sum(one.tokens for one in queued)
    assert (update.step, update.steps) == (status.step, status.steps)


async def test_every_figure_of_a_run_is_that_of_its_events(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(engine={"slots": 2}, rollout={"actors": 2}, reward={"concurrency": 1})
    )
    world.log = log = TimedLog()
    world.store = EventStore(Experience(), log)
    world.verifiers._seconds = 0.02
    seen: Counter[str] = Counter()
    evaluated: set[int | None] = set()

    async def look() -> None:
        began = trio.current_time()
        while True:
            status = world.coordinator.status()
            update = collect_update(world.coordinator.parts)
            agrees(status, update, log, began)
            seen.update(status.rollouts.keys())
            evaluated.add(status.evaluating)
            rewards = [actor for actor in status.actors if actor.role == "reward"]
            asked = min(status.rollouts.get("sealed", 0), AHEAD * len(rewards))
            if status.phase == "run" and all(actor.here for actor in rewards):
                assert sum(actor.holds for actor in rewards) == asked
            await trio.sleep(0.017)

    outcome = await world.run(look)
    world.check()
    assert outcome.ok and {"waiting", "leased", "sealed", "judged", "taken"} <= seen.keys()
    assert evaluated == {None, 0, 2, 4}
    final = collect_update(world.coordinator.parts)
    lags = world.trained_lags()
    assert final.lag_max == max(lags)
    assert final.lag_mean == pytest.approx(sum(lag * n for lag, n in lags.items()) / lags.total())
    statistics = world.coordinator.parts.statistics
    assert (final.idle_trainer, final.idle_rollout) == (
        statistics.idle("trainer"),
        statistics.idle("rollout"),
    )
    assert 0 < final.idle_trainer < 1 and final.generated_per_s > 0 < final.trained_per_s
    pauses = world.coordinator.parts.publishing.pauses[-1]
    assert set(pauses) == {0, 1} and final.pause_seconds == max(pauses.values())
    accuracy = world.coordinator.parts.evaluation.accuracy
    assert (final.accuracy_version, final.accuracy) == (4, accuracy[4])


async def test_an_actor_is_idle_by_the_shares_of_its_last_report(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())

    async def report() -> None:
        await world.until(lambda: world.learner.version >= 1)
        peer = world.coordinator.parts.roster.get("reward-0")
        assert peer is not None
        waits = [Wait("verdict", "reward-0", 3.0, 300.0)]
        peer.report = Report(2.0, {"verdict": 0.5, "work": 9.0, "nothing": 0.0}, {}, waits)
        [actor] = [one for one in world.coordinator.status().actors if one.role == "reward"]
        assert actor.idle == {"verdict": 0.25, "work": 1.0} and actor.waits == waits

    assert (await world.run(report)).ok
