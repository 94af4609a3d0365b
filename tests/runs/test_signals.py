"""Signals to a real run: the first one drains it, the second one ends it at once; and `asyncrl why`
tells how it stood."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from agents_run import AgentsRun
from train_support import command, end, processes, started, steps_done, wait_for

from asyncrl.observe import summary
from asyncrl.observe.why import why

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_sigterm_drains_and_ends_with_0(talked_to: AgentsRun) -> None:
    starting, training = talked_to.whys
    assert "The run starts" in starting and "The run trains" in training
    assert talked_to.status == 0, talked_to.said
    found = summary.read(talked_to.run / "summary.json")
    assert found.ok and found.balances() and "--resume" in found.reason
    assert why(talked_to.run, time.time())[0].endswith(
        "ago: stopped early, as asked; continue with --resume."
    )
    assert processes(talked_to.run) == {}


def test_a_second_signal_ends_it_at_once(model: Path, tmp_path: Path) -> None:
    """The trainer is stopped, so that the drain would take as long as it may."""
    run = tmp_path / "run"
    with started(command(model, run, train__steps=100_000, supervision__grace_s=60.0)) as process:
        wait_for("step", lambda: steps_done(run) >= 1)
        os.kill(processes(run)["trainer-0"], signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        wait_for("drain", lambda: "The run drains" in why(run, time.time())[0])
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
        assert time.monotonic() - began < 30
    assert code == 1, out + err
    sentences = why(run, time.time())
    assert "was killed" in sentences[0] and "It drains, and waits for" in sentences[1]
    assert processes(run) == {}


def test_a_signal_before_anything_began_is_no_failure(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(command(model, run, train__steps=100_000)) as process:
        wait_for("launcher", lambda: (run / "launcher.sock").exists())
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
    assert code == 0, out + err
    assert processes(run) == {}
