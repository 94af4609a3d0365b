"""The watchdog's own promises, beside those that runs and the simulation show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast, get_args

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from asyncrl.actors import coordinator
from asyncrl.actors.coordinator.agent_failures import FREE, AgentFailures
from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.lifecycle import Lifecycle
from asyncrl.actors.coordinator.watchdog import _too_long_at_work
from asyncrl.config.schema import SupervisionConfig
from asyncrl.messages import Busy, Command
from asyncrl.runtime.processes.standstill import TICK_S, RunClock

LIMIT_S = 30.0
TRIOS = {
    "watchdog.py": 2,  # it drives the run's clock
    "statistics.py": 3,  # rates and seconds of a run, as people count them
    "admission.py": 1,  # the seconds of training, likewise
    "stepping.py": 2,
    "collect_status.py": 1,
    "coordinator.py": 1,  # for how long the launcher may take to hear how the run ended
}
"""Readings of trio's clock in the coordinator's files: none of them is of a deadline of a part."""

Over = Callable[[float], bool]
"""`over(now)` is True if what a part keeps a deadline for has run out."""


def a_lease(now: float) -> Over:
    table = LeaseTable(LIMIT_S)
    table.give(1, 1, 0, now)
    return lambda later: bool(table.over(later))


def a_phase(now: float) -> Over:
    life = Lifecycle(["trainer-0"], SupervisionConfig(start_s=LIMIT_S), now)
    return lambda later: life.late(0.0, later) is not None


def a_pause_of_agents(now: float) -> Over:
    failures = AgentFailures(longest_s=LIMIT_S)
    for _ in range(FREE + 10):
        failures.failed("it raised", now)
    return lambda later: not failures.delays(later)


def a_part_that_knows_nothing_of_standstills(now: float) -> Over:
    deadline = now + LIMIT_S
    return lambda later: later >= deadline


@pytest.mark.parametrize(
    "part", [a_lease, a_phase, a_pause_of_agents, a_part_that_knows_nothing_of_standstills]
)
@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(2, 5000)), max_size=6), st.floats(0, 100.0))
def test_no_part_ends_anything_for_time_in_which_the_process_stood_still(
    part: Callable[[float], Over], standstills: list[tuple[float, float]], begins: float
) -> None:
    """The process runs and stands still by turns. A part's deadline is over only when the process
    has run for that long; of each standstill at most the rest of a tick counts. And it does end."""

    async def run() -> None:
        clock = RunClock()
        stood, count, ended = 0.0, 0, trio.Event()
        over: Over | None = None
        since = (0.0, 0)  # seconds for which the process had run, and its standstills by then

        def look() -> None:
            if over is None or ended.is_set() or not over(clock.now()):
                return
            ran = trio.current_time() - stood - since[0]
            assert ran >= LIMIT_S - TICK_S * (count - since[1]) - 1e-6
            ended.set()

        async def watch() -> None:
            woke = trio.current_time()
            while True:
                await clock.sleep_until(woke + TICK_S)
                woke = trio.current_time()
                look()

        async def begin() -> None:
            nonlocal over, since
            await trio.sleep(begins)
            over, since = part(clock.now()), (trio.current_time() - stood, count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(begin)
            for ran_s, stood_s in standstills:
                await trio.sleep(ran_s)
                machine.jump(stood_s)
                stood, count = stood + stood_s, count + 1
                look()  # somebody runs before the watchdog does
            with trio.fail_after(begins + LIMIT_S + 2 * TICK_S):
                await ended.wait()
            nursery.cancel_scope.cancel()

    machine = MockClock(autojump_threshold=0.0)
    trio.run(run, clock=machine)


@pytest.mark.parametrize("busy_s", [0.0, 3.0, 7.0, None])
@pytest.mark.parametrize("saving_s", [0.0, 3.0, 7.0, None])
@pytest.mark.parametrize("command", sorted(get_args(Command)))
def test_what_the_trainer_is_at_has_the_limit_of_its_kind(
    command: Command, busy_s: float | None, saving_s: float | None
) -> None:
    """A checkpoint has its own, whether it is written beside a command or is the command."""
    limits = SupervisionConfig(checkpoint_s=7.0, compute_s=3.0)
    busy = None if busy_s is None else Busy(command, busy_s)
    report = SimpleNamespace(busy=busy, saving_s=saving_s)
    stepping = SimpleNamespace(trainer=SimpleNamespace(report=report))
    parts = SimpleNamespace(stepping=stepping, config=SimpleNamespace(supervision=limits))
    said = _too_long_at_work(cast(Components, parts))
    own = 7.0 if command == "checkpoint" else 3.0
    if saving_s == 7.0:
        assert said == "the trainer is at one checkpoint for 7 s (supervision.checkpoint_s)"
    elif busy_s is not None and busy_s >= own:
        name = "checkpoint_s" if command == "checkpoint" else "compute_s"
        assert said == f"the trainer is at one {command} for {own:g} s (supervision.{name})"
    else:
        assert not said


def test_the_parts_of_the_coordinator_read_the_runs_clock() -> None:
    files = Path(coordinator.__file__).parent.glob("*.py")
    read = {file.name: file.read_text().count("trio.current_time()") for file in files}
    assert {name: count for name, count in read.items() if count} == TRIOS
