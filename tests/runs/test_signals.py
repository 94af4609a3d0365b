"""Signals to a real run: the first one drains it, the second one ends it at once; and `asyncrl why`
tells how it stood."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from train_support import command, end, processes, started, steps_done, tiny_model, wait_for

from asyncrl.observe import summary
from asyncrl.observe.why import why

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights."""
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_sigterm_drains_and_ends_with_0(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(command(model, run, train__steps=100_000, supervision__grace_s=60.0)) as process:
        wait_for("status", lambda: (run / "status.json").exists())
        assert "The run starts" in why(run, time.time())[0]
        wait_for("step", lambda: steps_done(run) >= 2)
        wait_for("news", lambda: "The run trains" in why(run, time.time())[0])
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
    assert code == 0, out + err
    found = summary.read(run / "summary.json")
    assert found.ok and found.balances() and "--resume" in found.reason
    assert why(run, time.time())[0].endswith(
        "ago: stopped early, as asked; continue with --resume."
    )
    assert processes(run) == {}


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
