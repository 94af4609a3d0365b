"""The way of a person who runs it, on a real run: its page, an engine that stops, the sentence that
says so, and the report."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import warm_process
from train_support import command, end, processes, started, steps_done, unhurried, wait_for

from asyncrl.runtime.processes.machine import free_port

SILENT = "rollout-0, rollout-1 have not reported for"

pytestmark = [pytest.mark.processes, pytest.mark.explore]


def asyncrl(*argv: str | Path) -> str:
    """Words of a command."""
    done = warm_process.run(
        [sys.executable, "-m", "asyncrl.cli", *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def page(port: int) -> str:
    """The page; empty while nobody serves it yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120) as found:
            return str(found.read().decode())
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            return ""
        raise


def part(port: int, name: str) -> str:
    """A part of the page, without its tags."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/part/{name}", timeout=120) as found:
        return " ".join(re.sub(r"<[^>]+>", " ", found.read().decode()).split())


def test_a_page_is_opened_an_engine_stops_and_it_is_said_why(model: Path, tmp_path: Path) -> None:
    run, port = tmp_path / "run", free_port()
    settings = {"train__steps": 10_000, "rollout__actors": 2, "run__page_port": port}
    settings |= unhurried(tmp_path / "task")
    with started(command(model, run, **settings)) as launcher:
        wait_for("steps", lambda: steps_done(run) >= 3)
        wait_for("the page", lambda: 'id="curves"' in page(port))
        wait_for("figures", lambda: "Tokens/s" in part(port, "figures"))
        assert SILENT not in asyncrl("why", run)
        for name in ("rollout-0", "rollout-1"):
            os.kill(processes(run)[name], signal.SIGSTOP)
        before = steps_done(run)
        wait_for("the sentence", lambda: SILENT in asyncrl("why", run), every_s=1.0)
        assert steps_done(run) <= before + 3, "it stands still, and says so"
        wait_for("the same on the page", lambda: SILENT in part(port, "diagnosis"))
        for name in ("rollout-0", "rollout-1"):
            os.kill(processes(run)[name], signal.SIGCONT)
        wait_for("more steps", lambda: steps_done(run) >= before + 5)
        launcher.send_signal(signal.SIGTERM)
        code, shown, said = end(launcher)
    assert code == 0, shown + said
    report = tmp_path / "report.html"
    asyncrl("report", run, "-o", report)
    written = report.read_text()
    assert 'id="figures"' in written and 'id="time"' in written
