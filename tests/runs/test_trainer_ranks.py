"""A trainer of two ranks and two engines, with real processes: what is generated is trained, an
engine that dies comes back, a rank that is killed or stands still ends the run by its name, and any
number of ranks goes on from there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import noting_engine
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from train_support import (
    all_sealed,
    command,
    end,
    followed,
    kill,
    processes,
    resume,
    started,
    steps_done,
    train,
    wait_for,
)

from asyncrl.explain import run_status, summary
from asyncrl.explain.run_status import ActorStatus, RunStatus
from asyncrl.runtime.processes.healing import FAILED_LIVES
from asyncrl.runtime.run_dir import MODEL, MODEL_EMA, RUN_TOML, STATUS, SUMMARY
from asyncrl.training.checkpoint_index import complete

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SETTINGS: dict[str, Any] = {
    "train__ranks": 2,
    "train__steps": 10_000,
    "train__checkpoint_every": 2,
    "rollout__actors": 2,
    "staleness__max_lag": 0,
    "staleness__depth": 0,
    "machine__cores": 2,
}


def weights(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    files = sorted(folder.glob("model*.safetensors"))  # each rank writes its own
    return {name: array for file in files for name, array in load_file(file).items()}


def finished(run: Path) -> int:
    """The steps of a run that ended well."""
    told = summary.read(run / SUMMARY)
    assert told.ok and told.balances()
    return told.steps


def ended(process: subprocess.Popen[str], run: Path, more: int) -> tuple[str, int]:
    """Output and steps of a run that is asked to end after so many more steps."""
    before = steps_done(run)
    wait_for("more steps", lambda: steps_done(run) >= before + more)
    process.send_signal(signal.SIGTERM)
    code, shown, said = end(process)
    assert code == 0, shown + said
    steps = finished(run)
    assert steps >= before + more
    return shown, steps


@pytest.mark.explore
def test_an_engine_that_dies_in_a_transfer_and_a_rank_that_dies_in_a_step_change_nothing(
    model: Path, tmp_path: Path
) -> None:
    """At lag 0: the run heals by itself, the ledger balances, and trainer and engines end with the
    weights of a run that nobody harmed; the rank is left out when three lives have ended with it.
    Prints the seconds from its loss to the next new step."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path}
    settings = SETTINGS | {"engine__kind": "noting_engine:NotingEngine"}
    unharmed, run = tmp_path / "unharmed", tmp_path / "run"
    left_out = settings | {"train__min_ranks": 1}
    with started(command(model, run, **left_out), **environment) as process:
        follower = followed(run)
        wait_for("a step", lambda: follower.look() and follower.version >= 1)
        dies_in_a_transfer(run, follower)
        back = wait_for("engine", lambda: engine(run, lambda of: of.here and of.version))
        assert back.incarnation == 1
        took = []
        for _ in range(FAILED_LIVES):
            before = dies_in_a_step(run)
            began = time.monotonic()
            wait_for("a new step", lambda before=before: steps_done(run) > before)
            took.append(round(time.monotonic() - began, 1))
        assert "trainer-1" not in processes(run)
        shown, steps = ended(process, run, more=1)
    print("seconds from the loss of a rank to a new step:", took)
    assert "trainer-1 was killed by SIGKILL" in shown and "trainer-1 was lost" in shown
    told = " ".join(shown.split())
    assert "trainer-1 failed again and again, and is left out." in told
    assert "goes on with 1 of 2 ranks: this machine has 2 cores, without 1 for ranks" in told
    assert not processes(run)
    assert summary.read(run / SUMMARY).restarts == {"trainer": FAILED_LIVES}
    done = train(command(model, unharmed, **settings | {"train__steps": steps}), **environment)
    assert done.returncode == 0, done.stderr
    assert finished(unharmed) == steps
    newest = complete(run)[-1]  # of a run that is asked to end
    assert newest.version == steps
    left = {unharmed: weights(unharmed / MODEL), run: weights(newest.path)}
    assert left[unharmed].keys() == left[run].keys()
    for name, array in left[unharmed].items():
        assert np.abs(left[run][name] - array).max() <= 1e-5, name
    for each, arrays in left.items():
        learned = noting_engine.digest(
            (name, torch.from_numpy(array)) for name, array in arrays.items()
        )
        assert [noting_engine.noted(each, index) for index in range(2)] == [(steps, learned)] * 2


def dies_in_a_transfer(run: Path, follower: Any) -> None:
    """Kill an engine while weights are sent to it. What stands still receives nothing: so it is
    stopped before a publication that the trainer, stopped too, has not come to."""
    trainer, rollout = processes(run)["trainer-0"], processes(run)["rollout-1"]
    os.kill(trainer, signal.SIGSTOP)
    wait_for("end of all responses", lambda: all_sealed(follower))  # at lag 0 none begins then
    os.kill(rollout, signal.SIGSTOP)
    os.kill(trainer, signal.SIGCONT)
    wait_for("transfer", lambda: (status := looked(run)) and transfers(status))
    kill(rollout)


def transfers(status: RunStatus) -> bool:
    """True of a transfer that has taken longer than one that nobody holds up."""
    found = status.publication
    return found is not None and found.phase == "transfer" and found.seconds > 1.0


def dies_in_a_step(run: Path) -> int:
    """Kill a rank for which the other waits with a part of a step, and not with a publication or a
    checkpoint. Gives the steps that were done."""
    rank = wait_for("rank 1", lambda: processes(run).get("trainer-1"))

    def in_a_step() -> bool:
        os.kill(rank, signal.SIGSTOP)
        waits = wait_for("wait for rank 1", lambda: (status := looked(run)) and for_rank_1(status))
        if waits & {"micro-batch of rank 1", "optimizer step of rank 1"}:
            return True
        os.kill(rank, signal.SIGCONT)
        return False

    wait_for("order of a step", in_a_step)
    done = steps_done(run)
    kill(rank)
    return done


def for_rank_1(status: RunStatus) -> set[str]:
    """Names of rank 0's waits for the other that are longer than any that nobody holds up."""
    (trainer,) = (actor for actor in status.actors if actor.name == "trainer-0")
    return {w.name for w in trainer.waits if "rank 1" in w.name and w.seconds > 0.5}


def engine(run: Path, wanted: Callable[[ActorStatus], Any]) -> ActorStatus | None:
    """The second engine's status where it is as wanted."""
    found = (status := looked(run)) and [a for a in status.actors if a.name == "rollout-1"]
    return next((actor for actor in found or () if actor.incarnation and wanted(actor)), None)


def looked(run: Path) -> RunStatus | None:
    """The run status; None before there is one."""
    try:
        return run_status.read(run / STATUS)
    except FileNotFoundError:
        return None


EVERYTHING: dict[str, Any] = {
    "train__ranks": 4,
    "reference__coefficient": 0.02,
    "model__lora__rank": 2,
    "staleness__proximal": "boundary",
    "staleness__correction": "m2po",
    "staleness__max_lag": 1,
    "staleness__depth": 1,
    "train__ema": 0.9,
}


@pytest.mark.explore
def test_a_rank_that_stands_still_ends_the_run_and_half_of_them_go_on(
    model: Path, tmp_path: Path
) -> None:
    """With all that needs more of a rank than its own gradient."""
    run, stall_s = tmp_path / "run", 10.0
    patience = {
        "supervision__stall_s": stall_s,
        "supervision__heals": 0,
        "task__verdict_s": 5.0,
    }
    with started(command(model, run, **SETTINGS | EVERYTHING | patience)) as process:
        wait_for("two steps", lambda: steps_done(run) >= 2 and complete(run))
        os.kill(processes(run)["trainer-1"], signal.SIGSTOP)
        code, shown, _ = end(process)
    assert code == 1
    # the others wait for it in a collective: none of them answers
    named = r"of rank 1 on \S+ \(it has said nothing for \d+ s\), which is the limit"
    assert re.search(named, " ".join(shown.split())), shown
    assert not processes(run)

    toml = (run / RUN_TOML).read_text().replace("ranks = 4", "ranks = 2")
    (run / RUN_TOML).write_text(toml)
    steps = steps_done(run) + 2
    done = train([*resume(run), f"--set=train.steps={steps}"])
    assert done.returncode == 0, done.stderr
    assert finished(run) == steps
    assert weights(run / MODEL).keys() == weights(run / MODEL_EMA).keys()


@pytest.mark.explore
def test_a_run_whose_machine_has_a_core_less_goes_on_with_a_rank_less(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with started(command(model, run, **SETTINGS)) as process:
        wait_for("two steps", lambda: steps_done(run) >= 2 and complete(run))
        os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[:1])
        kill(processes(run)["trainer-1"])
        wait_for("another life", lambda: set(processes(run)) >= {"trainer-0", "rollout-1"})
        assert "trainer-1" not in processes(run)
        shown, _ = ended(process, run, more=2)
    assert "goes on with 1 of 2 ranks: this machine has 1 core." in " ".join(shown.split())
    assert "ranks = 1" in (run / RUN_TOML).read_text()


@pytest.mark.explore
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
    expected, found = weights(staged / MODEL), weights(direct / MODEL)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
