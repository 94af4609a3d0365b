from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.runtime.processes.process import Process, spawn
from asyncrl.runtime.processes.supervisor import (
    ActorFailed,
    Child,
    RestartBudget,
    describe_exit,
    supervise,
)


class Scripted:
    """A child that ends after `seconds` with `code`, or when killed, which takes a second."""

    def __init__(
        self, seconds: float, code: int, text: str = "", *, displaced: bool = False
    ) -> None:
        self.seconds, self.code, self.text = seconds, code, text
        self.displaced = displaced
        self.killed = self.dead = False

    async def wait(self) -> int:
        if not self.dead:
            await trio.sleep(self.seconds)
            self.dead = True
        return self.code

    def kill(self) -> None:
        raise AssertionError("a supervisor of one child kills its group")

    async def kill_group(self) -> int:
        if not self.dead:
            self.killed = True
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            self.dead, self.code = True, -9
        return self.code

    def tail(self) -> str:
        return self.text


class Log:
    """Starts, and what `on_exit` heard, in order."""

    def __init__(self, *script: Scripted) -> None:
        self.script = list(script)
        self.events: list[object] = []

    def start(self, incarnation: int) -> Child:
        self.events.append(incarnation)
        return self.script[incarnation]

    def on_exit(self, name: str, code: int, restarting: bool) -> None:
        self.events.append((name, code, restarting))


async def test_an_end_with_zero_is_the_end(autojump_clock):
    log = Log(Scripted(5, 0))
    await supervise("rollout-0", log.start, budget=RestartBudget(5, 300), on_exit=log.on_exit)
    assert log.events == [0, ("rollout-0", 0, False)]


async def test_a_failure_is_restarted_alone(autojump_clock):
    log = Log(Scripted(5, -9), Scripted(5, 1), Scripted(5, 0))
    await supervise("rollout-0", log.start, budget=RestartBudget(5, 300), on_exit=log.on_exit)
    assert log.events == [
        0,
        ("rollout-0", -9, True),
        1,
        ("rollout-0", 1, True),
        2,
        ("rollout-0", 0, False),
    ]


async def test_who_is_not_needed_any_more_is_not_started_again_and_has_not_failed(autojump_clock):
    log = Log(Scripted(5, -9), Scripted(5, 1))
    needed = iter([True, False])
    await supervise(
        "rollout-0",
        log.start,
        budget=RestartBudget(5, 300),
        on_exit=log.on_exit,
        still_needed=lambda: next(needed),
    )
    assert log.events == [0, ("rollout-0", -9, True), 1, ("rollout-0", 1, False)]


async def test_a_spent_budget_is_the_childs_own_traceback(autojump_clock):
    log = Log(
        Scripted(5, 1),
        Scripted(5, 1),
        Scripted(5, 1, "Traceback (most recent call last):\nKeyError: 'why'"),
    )
    with pytest.raises(
        ActorFailed,
        match="rollout-0 ended with exit code 1 after 2 restarts; its last output:\nTraceback",
    ) as caught:
        await supervise("rollout-0", log.start, budget=RestartBudget(2, 300), on_exit=log.on_exit)
    assert "KeyError: 'why'" in str(caught.value)
    assert (caught.value.name, caught.value.code) == ("rollout-0", 1)
    assert log.events[-1] == ("rollout-0", 1, False)


async def test_the_loss_of_machines_spends_no_budget(autojump_clock):
    """A spot machine that is taken back is no failure of the actor that it had."""
    lost = [Scripted(5, -9, displaced=True) for _ in range(4)]
    log = Log(Scripted(5, 1), *lost, Scripted(5, 1, "its own fault"))
    with pytest.raises(ActorFailed, match="its own fault"):
        await supervise("rollout-0", log.start, budget=RestartBudget(1, 300), on_exit=log.on_exit)
    ends = [event for event in log.events if isinstance(event, tuple)]
    assert [restarting for _, _, restarting in ends] == [True] * 5 + [False]


async def test_errors_at_each_start_do_not_use_up_all_restarts_at_once(autojump_clock):
    """A machine that lacks something for a moment (memory, a process that forks) ends an actor as
    soon as it is started. One that is killed, or worked for long, is started again at once."""
    began: list[float] = []

    def run(*script: Scripted, needed: Callable[[], bool] = lambda: True):
        def start(incarnation: int) -> Child:
            began.append(trio.current_time())
            return script[incarnation]

        began.clear()
        budget = RestartBudget(8, 1000)
        return supervise(
            "agents-0", start, budget=budget, on_exit=lambda *_: None, still_needed=needed
        )

    def starts() -> list[float]:
        return [later - before for before, later in itertools.pairwise(began)]

    lost = [Scripted(1, 1, "WorkersLost: the process that starts agents ended") for _ in range(7)]
    await run(*lost, Scripted(1, 0))
    assert starts() == [1, 3, 5, 9, 17, 31, 31]
    await run(Scripted(1, 1), Scripted(1, -9), Scripted(1, 1), Scripted(1, -9), Scripted(1, 0))
    assert starts() == [1, 1, 1, 1]
    await run(Scripted(1, 1), Scripted(100, 1), Scripted(1, 1), Scripted(1, 1), Scripted(1, 0))
    assert starts() == [1, 100, 1, 3]
    await run(*[Scripted(1, 1) for _ in range(3)], needed=iter([True, True, False]).__next__)
    assert starts() == [1]


async def test_the_budget_comes_back_with_time(autojump_clock):
    log = Log(*[Scripted(200, 1) for _ in range(10)], Scripted(1, 0))
    await supervise("rollout-0", log.start, budget=RestartBudget(2, 300), on_exit=log.on_exit)
    assert len(log.script) == 11 and log.events[-1] == ("rollout-0", 0, False)


async def test_a_trainer_is_not_restarted_and_its_nursery_ends_the_others(autojump_clock):
    trainer, rollout = Log(Scripted(5, -9, "boom")), Log(Scripted(1000, 0))
    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:

            async def run(name: str, log: Log, budget: RestartBudget | None) -> None:
                await supervise(name, log.start, budget=budget, on_exit=log.on_exit)

            nursery.start_soon(run, "rollout-0", rollout, RestartBudget(5, 300))
            nursery.start_soon(run, "trainer-0", trainer, None)
    (failure,) = caught.value.exceptions
    assert (
        isinstance(failure, ActorFailed)
        and "trainer-0 was killed by SIGKILL" in str(failure)
        and "boom" in str(failure)
    )
    assert rollout.script[0].killed and rollout.script[0].dead
    assert trio.current_time() == pytest.approx(6, abs=0.1)


async def test_a_cancellation_kills_and_waits_for_the_death(autojump_clock):
    log = Log(Scripted(1000, 0))
    with trio.move_on_after(5) as scope:
        await supervise("rollout-0", log.start, budget=RestartBudget(5, 300), on_exit=log.on_exit)
    assert scope.cancelled_caught
    assert log.script[0].killed and log.script[0].dead
    assert log.events == [0], "it was ended, it did not fail"


@given(st.lists(st.floats(0, 100), max_size=30), st.integers(0, 5), st.floats(0.1, 50))
def test_restarts_within_any_window_stay_within_the_budget(failures, restarts, window):
    """Failures at any times: those that the budget grants never exceed it in any window that ends
    at one of them."""
    budget = RestartBudget(restarts, window)
    granted: list[float] = []
    for time in sorted(failures):
        before = [t for t in granted if time - window < t <= time]
        assert budget.allows(granted, time) == (len(before) < restarts)
        if budget.allows(granted, time):
            granted.append(time)
    for time in granted:
        assert len([t for t in granted if time - window < t <= time]) <= restarts


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (2, "ended with exit code 2"),
        (-9, "was killed by SIGKILL"),
        (-40, "was killed by signal 40"),
    ],
)
def test_an_exit_code_in_words(code, words):
    assert describe_exit(code) == words


@pytest.mark.processes
async def test_a_real_child_is_restarted_and_at_last_given_up(tmp_path):
    children: list[Process] = []

    def start(incarnation: int) -> Process:
        code = (
            "from asyncrl.runtime.processes.process import become_child; become_child(); raise "
            f"ValueError('incarnation {incarnation}')"
        )
        children.append(spawn("reward-0", [sys.executable, "-c", code], log=tmp_path / "log"))
        return children[-1]

    exits = []
    with pytest.raises(ActorFailed, match="incarnation 1") as caught:
        await supervise(
            "reward-0",
            start,
            budget=RestartBudget(1, 300),
            on_exit=lambda *exit: exits.append(exit),
        )
    assert "incarnation 0" not in str(caught.value)
    assert exits == [("reward-0", 1, True), ("reward-0", 1, False)]


@pytest.mark.processes
async def test_a_real_child_is_dead_after_a_cancellation(tmp_path):
    children: list[Process] = []

    def start(incarnation: int) -> Process:
        code = (
            "from asyncrl.runtime.processes.process import become_child; become_child(); import "
            "signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
        )
        children.append(spawn("reward-0", [sys.executable, "-c", code], log=tmp_path / "log"))
        return children[-1]

    with trio.move_on_after(0.3):
        await supervise("reward-0", start, budget=RestartBudget(1, 300), on_exit=print)
    assert await children[0].wait() == -signal.SIGKILL
