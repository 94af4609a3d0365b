"""Real runs whose trainer or coordinator is killed, and which go on by themselves."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from train_support import (
    command,
    end,
    followed,
    kill,
    processes,
    started,
    steps_done,
    train,
    wait_for,
)

from asyncrl.explain import summary
from asyncrl.runtime.run_dir import SUMMARY

ENDLESS = {"train__steps": 10_000, "train__checkpoint_every": 2}
AGAIN = "continues from its last checkpoint"
BROKEN = """
from asyncrl.staleness.corrections.correction import Correction

class Broken(Correction, frozen=True, kw_only=True):
    def apply(self, *_, **__):
        raise ValueError("this correction is broken")
"""


def comes_to(follower: Any, version: int) -> None:
    """Wait for the steps up to a version."""
    wait_for("steps", lambda: (follower.look(), follower.version >= version)[1], every_s=0.02)


def gone(life: dict[str, int], run: Path) -> bool:
    """True if no process of a life is left."""
    return not {*life.values()} & {*processes(run).values()}


@pytest.mark.explore
def test_a_run_goes_on_by_itself_when_its_trainer_and_its_coordinator_are_killed(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    follower, lost = followed(run), ["trainer", "coordinator", "trainer"]
    # what a checkpoint lets the journal drop, the follower has had some steps to read
    settings = ENDLESS | {"train__checkpoint_every": 4}
    with started(command(model, run, **settings)) as process:
        for role in lost:
            comes_to(follower, follower.version + 3)
            life = processes(run)
            kill(life[f"{role}-0"])
            wait_for("end of a life", lambda life=life: gone(life, run))
            follower.dead()
        comes_to(follower, follower.version + 3)
        process.send_signal(signal.SIGTERM)
        code, shown, said = end(process)
    assert code == 0, shown + said
    follower.dead()
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.restarts == {"trainer": 2, "coordinator": 1}
    assert len(follower.resumed) == 3 and not processes(run)
    assert shown.count(AGAIN) == 3


@pytest.mark.explore
def test_a_run_that_is_ended_while_it_heals_leaves_nothing(model: Path, tmp_path: Path) -> None:
    """It ends as asked, or, where the coordinator's end was not known yet, by that failure."""
    run = tmp_path / "run"
    with started(command(model, run, **ENDLESS)) as process:
        wait_for("step", lambda: steps_done(run) >= 2)
        life = processes(run)
        kill(life["coordinator-0"])
        wait_for("end of the trainer", lambda: life["trainer-0"] not in processes(run).values())
        process.send_signal(signal.SIGINT)
        code, shown, said = end(process)
    assert code in (1, 130), shown + said
    assert not processes(run)


@pytest.mark.explore
def test_a_trainer_that_stands_still_is_replaced(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    patience = {"supervision__stall_s": 8.0, "task__verdict_s": 4.0}
    with started(command(model, run, **ENDLESS, **patience)) as process:
        wait_for("step", lambda: steps_done(run) >= 2)
        trainer = processes(run)["trainer-0"]
        os.kill(trainer, signal.SIGSTOP)
        wait_for("another trainer", lambda: processes(run).get("trainer-0", trainer) != trainer)
        done = steps_done(run)
        wait_for("step", lambda: steps_done(run) > done)
        process.send_signal(signal.SIGTERM)
        code, shown, said = end(process)
    assert code == 0, shown + said
    assert shown.count(AGAIN) == 1 and not processes(run)


@pytest.mark.explore
def test_what_the_trainer_cannot_begin_with_is_told_once(model: Path, tmp_path: Path) -> None:
    """An error of its own before the first step is no accident."""
    run = tmp_path / "run"
    (tmp_path / "broken.py").write_text(BROKEN)
    argv = command(model, run, staleness__correction="broken:Broken")
    done = train(argv, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert "the correction 'broken:Broken' failed in broken.py, line 6" in done.stderr
    assert "this correction is broken" in done.stderr
    assert AGAIN not in done.stdout
