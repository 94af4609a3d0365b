"""Sentences of a run about what takes long: since when, how far, and how long still."""

from __future__ import annotations

import trio
from scripted_parts import ScriptedVerifiers, by_length
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.underway import Found, Underway
from asyncrl.messages import Progress, StatusUpdate


def test_what_is_counted_is_estimated_by_its_pace_and_shown_after_two_seconds() -> None:
    underway = Underway()
    underway.look([Found("redoing", "again", 10, 40)], 100.0)
    assert underway.shown == []
    underway.look([Found("redoing", "again", 20, 40)], 104.0)
    assert underway.shown == [Progress("again", 20, 40, 4.0, 8.0)]
    underway.look([], 105.0)
    assert underway.shown == []


def test_what_is_not_counted_takes_as_long_as_the_last_time() -> None:
    underway = Underway()
    for now in (0.0, 1.0, 5.0):
        underway.look([Found("saving", "saving version 2")], now)
    assert underway.shown == [Progress("saving version 2", 0, 0, 5.0, None)]
    underway.look([], 6.0)
    for now in (100.0, 104.0):
        underway.look([Found("saving", "saving version 4")], now)
    assert underway.shown == [Progress("saving version 4", 0, 0, 4.0, 2.0)]
    underway.look([Found("saving", "saving version 4")], 109.0)
    assert underway.shown[0].left_s == 0.0


async def test_a_run_shows_its_start_its_evaluations_and_its_checkpoints(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())
    world.late_s, world.verifiers = 4.0, ScriptedVerifiers(by_length, 8.0)
    write = world.learner.write

    async def slow(version: int, cursor: int) -> object:
        await trio.sleep(7.0)
        return await write(version, cursor)

    world.learner.write = slow
    assert (await world.run()).ok
    heard = [message for message in world.heard if isinstance(message, StatusUpdate)]
    shown = [progress for message in heard for progress in message.progress]
    kinds = {progress.what.split()[0] for progress in shown}
    assert {"evaluating", "saving"} <= kinds
    saves = [progress for progress in shown if progress.what.startswith("saving")]
    assert any(progress.left_s is not None for progress in saves), "as long as the one before"
    for progress in shown:
        assert progress.seconds >= 2.0 and progress.done <= progress.of
