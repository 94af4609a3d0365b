"""A disk that takes no checkpoint, in virtual time: it is said at the first one, work is held back
from the second on, and the run ends by that name or goes on as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from scripted_parts import MemoryLog
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.checkpointing import RETRIES, Checkpointing
from asyncrl.actors.coordinator.collect_status import collect_update
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.explain.conditions.disks import HOLDS
from asyncrl.explain.diagnosis import diagnose
from asyncrl.messages import Replace, Save, Saved
from asyncrl.training.checkpoint_index import CheckpointError

STALL_S = 60.0
NO_ROOM = "step-000004 cannot be written: No space left on device; make room"


class Disk(ScriptedWorld):
    """A run whose disk takes no checkpoint while it is `full`. `asked` are the versions that it was
    asked to keep."""

    def __init__(self, *, evaluated: int = 0, **train: object) -> None:
        super().__init__(
            configured(
                task={"eval_size": evaluated},
                train={"steps": 1000, "checkpoint_every": 4} | train,
                supervision={"stall_s": STALL_S, "grace_s": 10.0},
            )
        )
        self.full, self.asked = False, list[int]()
        self._take, self.learner.write = self.learner.write, self._write  # type: ignore[method-assign]

    async def _write(self, version: int, cursor: int) -> Path:
        self.asked.append(version)
        await trio.sleep(0.1)
        if self.full:
            raise CheckpointError(NO_ROOM)
        return await self._take(version, cursor)

    @property
    def alarms(self) -> list[str]:
        return collect_update(self.coordinator.parts).alarms

    @property
    def admitted(self) -> int:
        return len(self.of(e.Admitted))

    def unwritten(self) -> int:
        stepping = self.coordinator.parts.stepping
        return stepping.checkpoints.unwritten if stepping else 0


async def test_the_first_is_said_everywhere_and_costs_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = Disk(steps=16)

    async def one_moment() -> None:
        await world.until(lambda: world.learner.version >= 5)
        world.full = True
        await world.until(lambda: world.unwritten() == 1)
        world.full = False
        [said] = world.alarms
        assert NO_ROOM in said and "run.dir" in said
        status = world.coordinator.status()
        assert said in status.alarms and status.unwritten == 1
        metrics = world.coordinator.parts.metrics.registry
        assert metrics.get_sample_value("asyncrl_alarm", {"cause": "checkpoint_unwritten"}) == 1
        failed = {"outcome": "failed"}
        assert metrics.get_sample_value("asyncrl_checkpoints_total", failed) == 1
        before = world.admitted
        await world.until(lambda: world.admitted > before)
        await world.until(lambda: not world.alarms)
        assert world.coordinator.status().unwritten == 0
        assert metrics.get_sample_value("asyncrl_alarm", {"cause": "checkpoint_unwritten"}) is None

    outcome = await world.run(one_moment)
    assert outcome.ok and [version for version, _ in world.learner.saved] == [4, 12, 16]
    summary = world.coordinator_summary(outcome)
    assert summary.alarms["checkpoint_unwritten"].steps == 1


async def test_from_the_second_on_nothing_is_admitted_and_the_run_ends_by_that_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = Disk()

    async def filled() -> None:
        await world.until(lambda: world.learner.version >= 5)
        world.full = True
        await world.until(lambda: world.unwritten() == HOLDS)
        held, since = world.admitted, trio.current_time()
        [said] = world.alarms
        assert "nothing new is admitted" in said
        await world.until(lambda: world.unwritten() == HOLDS + 3)
        status = world.coordinator.status()
        assert diagnose(status) == world.alarms[0] and world.admitted == held
        await world.until(lambda: world.coordinator.parts.outcome is not None)
        assert STALL_S <= trio.current_time() - since < STALL_S + 5.0
        assert world.admitted == held

    outcome = await world.run(filled)
    assert not outcome.ok and outcome.heals is None
    assert NO_ROOM in outcome.reason and outcome.reason.endswith("make room, and resume the run")
    assert [version for version, _ in world.learner.saved] == [4]
    assert len(world.asked) <= 1 + HOLDS + RETRIES + 1  # one more at the drain
    assert not [message for message in world.heard if isinstance(message, Replace)]
    world.check()


async def test_one_that_is_written_meanwhile_lets_all_go_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = Disk(steps=30)

    async def filled_and_emptied() -> None:
        await world.until(lambda: world.learner.version >= 5)
        world.full = True
        await world.until(lambda: world.unwritten() >= HOLDS)
        held = world.admitted
        await trio.sleep(0.8 * STALL_S)
        assert world.admitted == held
        world.full = False
        await world.until(lambda: not world.alarms)
        await world.until(lambda: world.admitted > held)

    outcome = await world.run(filled_and_emptied)
    assert outcome.ok and world.learner.saved[-1][0] == 30
    world.check()
    assert world.coordinator_summary(Outcome(True, "")).alarms["checkpoint_unwritten"].steps > 1


async def test_no_evaluation_starts_while_nothing_new_is_admitted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is made up for: of the version that is current once the disk takes a checkpoint."""
    world = Disk(evaluated=3, eval_every=1, steps=40)

    async def filled_and_emptied() -> None:
        await world.until(lambda: world.learner.version >= 5)
        world.full = True
        await world.until(lambda: world.unwritten() >= HOLDS)
        evaluation = world.coordinator.parts.evaluation
        await world.until(lambda: evaluation.running is None)
        held, made = world.admitted, dict(evaluation.accuracy)
        await trio.sleep(0.8 * STALL_S)
        version = world.learner.version
        assert world.admitted == held and evaluation.accuracy == made and version not in made
        world.full = False
        await world.until(lambda: not world.alarms)
        await world.until(lambda: version in evaluation.accuracy)

    outcome = await world.run(filled_and_emptied)
    assert outcome.ok and 40 in world.coordinator.parts.evaluation.accuracy
    world.check()


class Trainer:
    """Takes commands."""

    def __init__(self) -> None:
        self.told: list[Save] = []

    def queue(self, command: Save) -> None:
        self.told.append(command)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 30.0)), max_size=40))
def test_whatever_a_disk_takes_and_when(answers: list[tuple[bool, float]]) -> None:
    """Work is held back exactly from the second failure in a row on, and the run is given up
    exactly when that has lasted for long; never while one is being written."""
    store = EventStore(Experience(), MemoryLog())
    checkpoints = Checkpointing(store, trainer := Trainer(), 0, STALL_S)  # type: ignore[arg-type]
    now, in_a_row, since = 0.0, 0, 0.0
    for version, (written, seconds) in enumerate(answers, 1):
        assert checkpoints.save(version, False) and len(trainer.told) == version
        now += seconds
        assert not checkpoints.given_up(now) and not checkpoints.due_again(now)
        path, error = ("there", "") if written else ("", "no room")
        checkpoints.on_saved(Saved(version, path, error), now)
        in_a_row = 0 if written else in_a_row + 1
        since = now if in_a_row == HOLDS else since
        assert checkpoints.holds is (in_a_row >= HOLDS)
        assert checkpoints.given_up(now) is (checkpoints.holds and now >= since + STALL_S)
        soon, later = now, now + STALL_S / RETRIES
        assert not checkpoints.due_again(soon)
        assert checkpoints.due_again(later) is (checkpoints.holds and later < since + STALL_S)


@pytest.mark.parametrize("steps", [4, 8])
async def test_the_last_one_ends_the_run_at_once(
    steps: int, autojump_clock: trio.testing.MockClock
) -> None:
    world = Disk(steps=steps)
    world.full = True
    outcome = await world.run()
    assert not outcome.ok and outcome.reason.startswith("the last checkpoint was not written")
    assert outcome.reason.endswith("make room, and resume the run")
