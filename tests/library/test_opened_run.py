"""Runs opened from Python: columns, states, lists of runs, and a stop from another process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from look_support import evaluation, make_run, status, step

import asyncrl as rl
from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.explain.run_status import ActorStatus
from asyncrl.runtime.run_dir import LOCK, METRICS, STATUS

HOLDER = """\
import fcntl, signal, sys, time
lock = open(sys.argv[1], "wb")
fcntl.flock(lock, fcntl.LOCK_EX)
signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
print("locked", flush=True)
time.sleep(60)
"""


def test_columns_have_one_item_for_each_version(tmp_path: Path) -> None:
    points = [evaluation(0, 0.25), step(1), step(2, discarded={}), evaluation(2, 0.5), step(3)]
    columns = rl.open_run(make_run(tmp_path / "r", points)).columns()
    assert columns["version"] == [0, 1, 2, 3]
    assert columns["accuracy"] == [0.25, None, 0.5, None]
    assert columns["reward"] == [None, 0.01, 0.02, 0.03]
    assert columns["entropy"] == [None, 1.0, 0.5, 1 / 3] and columns["k3"] == [None] * 4
    assert columns["discarded/stale"] == [None, 10, None, 10]
    assert columns["seconds"] == [10.5, 11.0, 12.0, 13.0], "of a version's step where it has one"
    assert {len(column) for column in columns.values()} == {4}
    assert rl.open_run(make_run(tmp_path / "empty")).columns() == {"version": []}


def test_runs_are_listed_newest_first_with_their_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rl.runs(tmp_path / "none") == []
    ranks = [
        ActorStatus(name=n, role=r, here=True, incarnation=0, pid=1, seconds=1.0, removed=gone)
        for n, r, gone in (
            ("trainer-0", "trainer", ""),
            ("rollout-0", "rollout", ""),
            ("rollout-1", "rollout", "was killed"),
        )
    ]
    made = {"ended": status(ok=True, actors=ranks), "failed": status(ok=False), "killed": status()}
    for age, (name, told) in enumerate(made.items()):
        points = [step(1), evaluation(1, 0.25), evaluation(2, 0.75), step(2)]
        path = make_run(tmp_path / "runs" / name, points, status=told)
        os.utime(path / "run.toml", (1e9 - age, 1e9 - age))
    (tmp_path / "runs" / "notes.txt").write_text("no run")
    (tmp_path / "runs" / "other").mkdir()
    found = rl.runs(tmp_path / "runs")
    assert [run.path.name for run in found] == [*made]
    assert [run.state for run in found] == [*made]
    assert main(["runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown] == [["run", "state"], *([one] * 2 for one in made)]
    for line in shown[1:]:
        assert line.split()[2:6] == ["12/100", "0.750", "8", "min"]  # 500 s, as the status says
    assert "17 min" in shown[1], "500 s of two devices"
    (tmp_path / "runs" / "failed" / METRICS).unlink()
    os.mkfifo(tmp_path / "runs" / "failed" / METRICS)
    (tmp_path / "runs" / "killed" / STATUS).write_text("{")
    assert main(["runs", str(tmp_path / "runs")]) == 0
    _, _, failed, killed = capsys.readouterr().out.splitlines()
    assert failed.split()[1:5] == ["failed", "–", "–", "–"] and "damaged" in killed
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "there is no such directory" in capsys.readouterr().err


def test_a_run_of_another_process_is_stopped_as_by_ctrl_c(tmp_path: Path) -> None:
    path = make_run(tmp_path / "r", toml="[supervision]\ngrace_s = 5.0\n")
    run = rl.open_run(path)
    run.stop()  # it is over
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path / LOCK)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        assert run.state == "begins" and run.lives
        began = time.monotonic()
        run.stop()
        assert time.monotonic() - began < 20 and not run.lives
        assert process.wait(10) == 3
    finally:
        process.kill()
        process.wait()
    assert run.state == "failed", "it said nothing"


def test_the_model_has_one_name_and_the_old_one(tmp_path: Path) -> None:
    path = make_run(tmp_path / "r")
    with pytest.raises(ConfigError, match="the run writes it after its last step"):
        rl.open_run(path).model_path  # noqa: B018
    (path / "model").mkdir()
    assert rl.open_run(path).model_path == rl.open_run(path).model == path / "model"
