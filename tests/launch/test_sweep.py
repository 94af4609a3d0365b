"""`asyncrl sweep`: what a dead run left is ended, what could not be is said, and a living run and
what is no run are left alone."""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.config.errors import BAD_INPUT
from asyncrl.sandbox.opened import Opened, left, note


def test_a_dead_run_is_swept_and_what_is_left_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, away = tmp_path / "run", tmp_path / "away"
    run.mkdir(0o700)
    command = [sys.executable, "-c", f"open({str(away)!r}, 'a').write('gone')"]
    (run / "run.toml").write_text(f"[agent]\nend = {command}\n")
    (run / "scratch" / "work").mkdir(parents=True)
    for opened in Opened("directory", "work"), Opened("command", "vm-3"):
        note(run, opened, "agents-0.r1-1")
    unknown = Opened("remote", "i-8", ("nobody",))
    note(run, unknown, "agents-1.r2-1")
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["sweep", str(run)]) == BAD_INPUT
        assert "run is alive" in capsys.readouterr().err and (run / "scratch" / "work").exists()
    assert main(["sweep", str(run)]) == 1
    *things, last = capsys.readouterr().out.splitlines()
    assert set(things) == {
        "command vm-3: ended",
        "directory work: ended",
        "remote i-8 (nobody): there is no adapter for the provider nobody",
    }
    assert last == "1 of 3 are left: check them, and sweep again."
    assert away.read_text() == "gone" and not (run / "scratch" / "work").exists()
    assert [found.opened for found in left(run)] == [unknown]
    next(left(run)).forget()
    assert main(["sweep", str(run)]) == 0
    assert capsys.readouterr().out == "Nothing is left of this run.\n"


@pytest.mark.parametrize(("name", "why"), [("", "no run.toml"), ("x", "no such directory")])
def test_what_is_no_run_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    assert main(["sweep", str(tmp_path / name)]) == BAD_INPUT
    said = capsys.readouterr().err
    assert why in said and said.count("\n") == 1 and not list(tmp_path.iterdir())
