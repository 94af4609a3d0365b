"""A real run with a rollout actor on the trainer's core."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from train_support import command, end, processes, started, steps_done, wait_for

from asyncrl import journal
from asyncrl.experience.events import Leased
from asyncrl.explain import run_status, summary
from asyncrl.runtime.processes.priority import NICE
from asyncrl.runtime.run_dir import JOURNAL, STATUS, SUMMARY

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.explore
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each side needs a core")
def test_it_has_the_trainers_core_and_a_low_priority_also_when_started_again(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    lent = {"rollout__actors": 2, "rollout__lent_actors": 1, "machine__cores": 2}
    with started(command(model, run, train__steps=10_000, **lent)) as launcher:
        wait_for("a step", lambda: steps_done(run) >= 1)
        found = processes(run)
        cores = {name: os.sched_getaffinity(pid) for name, pid in found.items()}
        nice = {name: os.getpriority(os.PRIO_PROCESS, pid) for name, pid in found.items()}
        assert cores["rollout-1"] == cores["trainer-0"] != cores["rollout-0"]
        others = nice.pop("rollout-1") - NICE
        assert set(nice.values()) == {others}
        os.kill(found["rollout-1"], signal.SIGKILL)
        again = lambda: processes(run).get("rollout-1", found["rollout-1"])  # noqa: E731
        wait_for("another one", lambda: again() != found["rollout-1"])
        wait_for(
            "its priority",
            lambda: os.getpriority(os.PRIO_PROCESS, again()) == others + NICE,
        )
        before = steps_done(run)
        wait_for("more steps", lambda: steps_done(run) >= before + 2)
        launcher.send_signal(signal.SIGTERM)
        code, out, err = end(launcher)
    assert code == 0, out + err
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.restarts == {"rollout": 1}


@pytest.mark.soak  # CI has a run of two vLLM servers of which one is lent
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each side needs a core")
def test_one_that_is_switched_works_while_the_trainer_waits(model: Path, tmp_path: Path) -> None:
    """It has the trainer's core and no lower priority, and what it held goes on elsewhere."""
    run = tmp_path / "run"
    lent = {"rollout__actors": 2, "rollout__lent_actors": 1, "rollout__lending": "switch"}
    with started(command(model, run, train__steps=20, machine__cores=2, **lent)) as launcher:
        wait_for("a step", lambda: steps_done(run) >= 1)
        found = processes(run)
        assert os.sched_getaffinity(found["rollout-1"]) == os.sched_getaffinity(found["trainer-0"])
        assert len({os.getpriority(os.PRIO_PROCESS, pid) for pid in found.values()}) == 1
        code, out, err = end(launcher)
    assert code == 0, out + err
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.steps == 20
    lending = run_status.read(run / STATUS).lending
    assert lending is not None and lending.loans >= 5 and lending.seconds > 0
    events = [event for _, event in journal.read(run / JOURNAL)]
    leased = {event.rollout for event in events if isinstance(event, Leased)}
    held = {e.rollout for e in events if isinstance(e, Leased) and e.holder == "rollout-1"}
    assert held and held < leased
