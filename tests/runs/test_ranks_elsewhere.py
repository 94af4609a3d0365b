"""A real run whose second rank is on a machine that joins for the trainer: it learns what two ranks
of one machine learn, goes on with one when that machine is lost, and with two when there is another
one. Here all machines are this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from train_support import command, end, joins, kill, processes, started, steps_done, train, wait_for

from asyncrl import config as configuration
from asyncrl.observe import logs, summary
from asyncrl.observe.run_dir import JOIN_TOKEN, MODEL, RUN_TOML, SUMMARY

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]

STEPS = 60
SETTINGS: dict[str, Any] = {
    "train__ranks": 2,
    "train__steps": STEPS,
    "train__checkpoint_every": 2,
    "rollout__actors": 1,
    "staleness__max_lag": 0,
    "staleness__depth": 0,
    "engine__compile": False,
    "machine__cores": 2,
}
"""At lag 0 what is learned follows from the seed, whoever is killed."""
ELSEWHERE = {"cluster__kind": "agents", "cluster__trainer_agents": 1}


def weights(run: Path) -> dict[str, np.ndarray[Any, Any]]:
    return load_file(run / MODEL / "model.safetensors")


def log(run: Path) -> str:
    return logs.path(run, "launcher", 0).read_text()


def ranks(run: Path) -> int:
    return configuration.read(run / RUN_TOML).train.ranks


def test_a_rank_on_another_machine_that_is_lost_and_replaced_changes_nothing(
    model: Path, tmp_path: Path
) -> None:
    here, run = tmp_path / "here", tmp_path / "run"
    done = train(command(model, here, **SETTINGS))
    assert done.returncode == 0, done.stderr

    token, folders = run / JOIN_TOKEN, [tmp_path / name for name in ("one", "two", "three")]
    one, two, three = folders
    with started(command(model, run, **SETTINGS, **ELSEWHERE)) as launcher:
        wait_for("join token", token.exists)
        with (
            started(joins(token, "one", one)) as engines,
            started([*joins(token, "two", two), "--for", "trainer"]) as second,
        ):
            wait_for("steps", lambda: steps_done(run) >= 4)
            assert set(processes(run)) == {"coordinator-0", "trainer-0", "reward-0"}
            assert set(processes(one)) == {"rollout-0"}
            assert set(processes(two)) == {"trainer-1"}
            kill(second.pid)
            wait_for("a life of one rank", lambda: ranks(run) == 1)
            before = steps_done(run)
            wait_for("steps of one rank", lambda: steps_done(run) >= before + 2)
            with started([*joins(token, "three", three), "--for", "trainer"]) as third:
                wait_for("the other machine", lambda: "Machine three takes part" in log(run))
                kill(processes(run)["trainer-0"])
                wait_for("a life of two ranks", lambda: ranks(run) == 2)
                code, shown, said = end(launcher)
                ends = [end(each)[0] for each in (engines, third)]
    assert code == 0, shown + said
    assert ends == [0, 0]
    assert "trainer-1 was lost" in shown and "The trainer goes on with 1 of 2 ranks" in shown
    assert "The trainer goes on with 2 of 2 ranks" in shown
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.steps == STEPS
    assert not any(map(processes, (run, *folders)))
    found, expected = weights(run), weights(here)
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() <= 1e-5, name
