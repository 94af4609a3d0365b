"""A trainer of two ranks and two engines, with real processes: what it generates is trained, a rank
that is killed or stands still ends the run by its name, and any number of ranks goes on from
there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from train_support import (
    command,
    end,
    kill,
    processes,
    resume,
    started,
    steps_done,
    train,
    wait_for,
)

from asyncrl.observe import summary
from asyncrl.observe.run_dir import MODEL, RUN_TOML, SUMMARY
from asyncrl.training.checkpoint_index import complete

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS = 6
SETTINGS: dict[str, Any] = {
    "train__ranks": 2,
    "train__steps": STEPS,
    "train__checkpoint_every": 2,
    "rollout__actors": 2,
    "staleness__max_lag": 0,
    "staleness__depth": 0,
    "engine__compile": False,
    "machine__cores": 2,
}


def weights(run: Path) -> dict[str, np.ndarray[Any, Any]]:
    return load_file(run / MODEL / "model.safetensors")


def finished(run: Path) -> None:
    told = summary.read(run / SUMMARY)
    assert told.balances()
    assert told.steps == STEPS


def test_a_killed_rank_ends_the_run_and_any_number_of_ranks_goes_on(
    model: Path, tmp_path: Path
) -> None:
    unharmed, run = tmp_path / "unharmed", tmp_path / "run"
    done = train(command(model, unharmed, **SETTINGS))
    assert done.returncode == 0, done.stderr
    finished(unharmed)

    with started(command(model, run, **SETTINGS)) as process:
        wait_for("two steps", lambda: steps_done(run) >= 2 and complete(run))
        kill(processes(run)["trainer-1"])
        code, _, said = end(process)
    assert code == 1
    assert "trainer-1 was killed by SIGKILL" in said
    assert not processes(run)

    done = train(resume(run))
    assert done.returncode == 0, done.stderr
    finished(run)
    for name, array in weights(unharmed).items():
        assert np.abs(weights(run)[name] - array).max() <= 1e-6, name


def test_a_rank_that_stands_still_ends_the_run_and_one_rank_goes_on(
    model: Path, tmp_path: Path
) -> None:
    run, stall_s = tmp_path / "run", 10.0
    patience = {"supervision__stall_s": stall_s, "task__verdict_s": 5.0}
    with started(command(model, run, **SETTINGS, **patience)) as process:
        wait_for("two steps", lambda: steps_done(run) >= 2 and complete(run))
        os.kill(processes(run)["trainer-1"], signal.SIGSTOP)
        code, shown, _ = end(process)
    assert code == 1
    assert "of rank 1, which is as long as it may" in " ".join(shown.split())
    assert not processes(run)

    toml = (run / RUN_TOML).read_text().replace("ranks = 2", "ranks = 1")
    (run / RUN_TOML).write_text(toml)
    done = train(resume(run))
    assert done.returncode == 0, done.stderr
    finished(run)


def test_shards_that_are_gathered_as_they_are_sent_make_the_same_run(
    model: Path, tmp_path: Path
) -> None:
    """At lag 0 the weights are a function of the seed: whichever way engines get them, and though
    one of the two is killed."""
    staged, direct = tmp_path / "staged", tmp_path / "direct"
    settings = SETTINGS | {"train__steps": 4}
    done = train(command(model, staged, **settings))
    assert done.returncode == 0, done.stderr
    with started(command(model, direct, **settings, publication__path="direct")) as process:
        wait_for("a step", lambda: steps_done(direct) >= 1)
        kill(processes(direct)["rollout-1"])
        code, out, said = end(process)
    assert code == 0, out + said
    assert summary.read(direct / SUMMARY).balances()
    expected, found = weights(staged), weights(direct)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
