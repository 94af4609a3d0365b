"""A real run whose second rank is on a machine that joins for the trainer: it learns what two ranks
of one machine learn, goes on when its launcher is started again, with another machine when that is
lost, and with one rank when there is none. Here all machines are this one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from train_support import (
    command,
    end,
    joins,
    kill,
    processes,
    resume,
    started,
    steps_done,
    train,
    wait_for,
)

from asyncrl.explain import summary
from asyncrl.runtime import logs
from asyncrl.runtime.run_dir import JOIN_TOKEN, MODEL, SUMMARY
from asyncrl.training.checkpoint_index import complete

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]

SETTINGS: dict[str, Any] = {
    "train__ranks": 2,
    "train__checkpoint_every": 2,
    "rollout__actors": 1,
    "staleness__max_lag": 0,
    "staleness__depth": 0,
    "machine__cores": 2,
    "reference__coefficient": 0.02,
}
"""At lag 0 what is learned follows from the seed, whoever is killed."""
ELSEWHERE = {
    "cluster__kind": "agents",
    "cluster__trainer_agents": 1,
    "train__steps": 10_000,
}


def weights(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    files = sorted(folder.glob("model*.safetensors"))  # each rank writes its own
    return {name: array for file in files for name, array in load_file(file).items()}


def log(run: Path) -> str:
    found = logs.path(run, "launcher", 0)
    return found.read_text() if found.exists() else ""


def test_a_rank_on_another_machine_that_is_lost_and_replaced_changes_nothing(
    model: Path, tmp_path: Path
) -> None:
    """Two machines join for the one that the trainer needs. The launcher is killed, and they come
    back to the next one; the second takes the place of the first, then nobody does, until another
    one joins: it gets its rank at the next checkpoint. It ends when it is asked to, and two ranks
    of one machine make as many steps."""
    here, run = tmp_path / "here", tmp_path / "run"
    token = run / JOIN_TOKEN
    folders = {name: tmp_path / name for name in ("one", "two", "three", "four")}
    with started(command(model, run, **SETTINGS, **ELSEWHERE)) as killed:
        wait_for("join token", token.exists)
        with (
            started([*joins(token, "two", folders["two"]), "--for", "trainer"]) as two,
            started([*joins(token, "three", folders["three"]), "--for", "trainer"]) as three,
        ):
            wait_for("both", lambda: log(run).count("with 2 cores, for the role trainer") == 2)
            with started(joins(token, "one", folders["one"])) as engines:
                wait_for("steps", lambda: steps_done(run) >= 4)
                assert set(processes(run)) == {"coordinator-0", "trainer-0", "reward-0"}
                assert set(processes(folders["one"])) == {"rollout-0"}
                killed.kill()
                killed.wait()
                before = steps_done(run)
                with started(resume(run)) as launcher:
                    wait_for("steps of all that came back", lambda: steps_done(run) >= before + 2)
                    agents = {"two": two, "three": three}
                    first = next(name for name in agents if processes(folders[name]))
                    kill(agents.pop(first).pid)
                    ((other, agent),) = agents.items()
                    wait_for("its rank", lambda: set(processes(folders[other])) == {"trainer-1"})
                    before = steps_done(run)
                    wait_for("steps of the other rank", lambda: steps_done(run) >= before + 2)
                    kill(agent.pid)
                    wait_for("one rank", lambda: "goes on with 1 of 2 ranks" in log(run))
                    with started([*joins(token, "four", folders["four"]), "--for", "trainer"]):
                        wait_for("its rank", lambda: "trainer-1" in processes(folders["four"]))
                        before = steps_done(run)
                        wait_for("steps of two ranks", lambda: steps_done(run) >= before + 2)
                        launcher.send_signal(signal.SIGTERM)
                        code, shown, said = end(launcher)
                    assert end(engines)[0] == 0
    assert code == 0, shown + said
    assert "trainer-1 was lost" in shown and "The trainer goes on with 1 of 2 ranks" in shown
    assert "The trainer goes on with 2 of 2 ranks" in shown
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.steps >= before + 2 and told.restarts == {"trainer": 2}
    assert not any(map(processes, (run, *folders.values())))
    done = train(command(model, here, **SETTINGS, train__steps=told.steps))
    assert done.returncode == 0, done.stderr
    newest = complete(run)[-1]  # of a run that is asked to end
    assert newest.version == told.steps
    found, expected = weights(newest.path), weights(here / MODEL)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() <= 1e-5, name
