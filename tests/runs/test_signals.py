"""Signals to a real run: the first one drains it, the second one ends it at once; and `asyncrl why`
tells how it stood. Whatever becomes of the terminal, the run goes on or drains."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import warm_process
from train_support import (
    DEADLINE_S,
    command,
    end,
    processes,
    started,
    steps_done,
    unhurried,
    wait_for,
)

from asyncrl.explain import summary
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.why import why

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.explore
def test_sigterm_drains_and_ends_with_0(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(command(model, run, train__steps=100_000, supervision__grace_s=60.0)) as process:
        wait_for("status", lambda: (run / "status.json").exists())
        starting = why(RunFiles(run), time.time())[0]
        wait_for("training", lambda: "The run trains" in why(RunFiles(run), time.time())[0])
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
    assert "The run starts" in starting
    assert code == 0, out + err
    found = summary.read(run / "summary.json")
    assert found.ok and found.balances() and "--resume" in found.reason
    assert why(RunFiles(run), time.time())[0].endswith(
        "ago: stopped early, as asked; continue with --resume."
    )
    assert processes(run) == {}


@pytest.mark.explore
def test_a_second_signal_ends_it_at_once(model: Path, tmp_path: Path) -> None:
    """The trainer is stopped, so that the drain would take as long as it may."""
    run = tmp_path / "run"
    with started(command(model, run, train__steps=100_000, supervision__grace_s=60.0)) as process:
        wait_for("step", lambda: steps_done(run) >= 1)
        os.kill(processes(run)["trainer-0"], signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        wait_for("drain", lambda: "The run drains" in why(RunFiles(run), time.time())[0])
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
        assert time.monotonic() - began < 30
    assert code == 1, out + err
    sentences = why(RunFiles(run), time.time())
    assert "was killed" in sentences[0] and "It is draining, and waits for" in sentences[1]
    assert processes(run) == {}


def test_a_signal_before_anything_began_is_no_failure(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(command(model, run, train__steps=100_000)) as process:
        wait_for("launcher", lambda: (run / "launcher.sock").exists())
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
    assert code == 0, out + err
    assert processes(run) == {}


@pytest.mark.explore
def test_a_run_that_was_started_to_outlive_its_terminal_does(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    argv = command(model, run, train__steps=100_000, **unhurried(tmp_path / "task"))
    with started(["nohup", *argv]) as process:  # a real start
        wait_for("step", lambda: steps_done(run) >= 1)
        process.send_signal(signal.SIGHUP)
        before = steps_done(run)
        wait_for("steps", lambda: steps_done(run) >= before + 2)
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
    assert code == 0, out + err


@pytest.mark.explore
def test_stopped_for_long_it_goes_on_and_a_terminal_that_hangs_up_drains_it(
    model: Path, tmp_path: Path
) -> None:
    """Ctrl-Z, for longer than the coordinator may be silent, ends nothing. Of the terminal's end
    shell and kernel both say so."""
    run = tmp_path / "run"
    limits = {"supervision__stall_s": 8.0, "task__verdict_s": 2.0} | unhurried(tmp_path / "task")
    with started(command(model, run, train__steps=100_000, **limits)) as process:
        wait_for("step", lambda: steps_done(run) >= 1)
        process.send_signal(signal.SIGSTOP)
        time.sleep(12.0)
        process.send_signal(signal.SIGCONT)
        before = steps_done(run)
        wait_for("steps", lambda: steps_done(run) >= before + 2)
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
        code, out, err = end(process)
    assert code == 0, out + err
    found = summary.read(run / "summary.json")
    assert found.ok and found.balances() and "--resume" in found.reason
    assert processes(run) == {}


@pytest.mark.explore
@pytest.mark.parametrize("output", ["closed pipe", "full disk"])
def test_a_run_whose_output_is_lost_goes_on_to_its_end(
    output: str, model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = command(model, run, train__steps=12, train__eval_every=0)
    if output == "full disk":
        with Path("/dev/full").open("w") as full:
            ended = warm_process.run(
                argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S
            )
        code, said = ended.returncode, ended.stderr
    else:
        with started(argv) as process:
            assert process.stdout is not None and process.stderr is not None
            while "/12 " not in process.stdout.readline():  # the first step that it shows
                assert process.poll() is None
            process.stdout.close()
            code, said = process.wait(DEADLINE_S), process.stderr.read()
    assert code == 0, said
    found = summary.read(run / "summary.json")
    assert found.ok and found.steps == 12
    assert "Traceback" not in said
    if output == "closed pipe":  # since the run began, so its log is told
        said = (run / "logs" / "launcher-0.log").read_text()
    assert said.count("nothing more is shown: ") == 1
