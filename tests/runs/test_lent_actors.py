"""A real run with a rollout actor on the trainer's core."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from train_support import command, end, processes, started, steps_done, wait_for

from asyncrl.observe import summary
from asyncrl.observe.run_dir import SUMMARY
from asyncrl.processes.priority import NICE

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.explore
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each side needs a core")
def test_it_has_the_trainers_core_and_a_low_priority_also_when_started_again(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    lent = {"rollout__actors": 2, "rollout__lent_actors": 1, "machine__cores": 2}
    with started(command(model, run, train__steps=30, **lent)) as launcher:
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
        code, out, err = end(launcher)
    assert code == 0, out + err
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.steps == 30
