"""`asyncrl top`: it follows a run from outside, and ends with it."""

from __future__ import annotations

import fcntl
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from hostile import HOSTILE, HOSTILE_SUMMARY, hostile_status
from look_support import evaluation, make_run, status, step
from rich.console import Console

from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.explain import run_status, summary
from asyncrl.explain.curve import line_of
from asyncrl.explain.display import Display, line
from asyncrl.explain.run_files import curve_of
from asyncrl.explain.run_status import ActorStatus, FailedEpisodes, RunStatus
from asyncrl.explain.views.top import EVERY_S, LAST_WORDS_S, follow, update_of
from asyncrl.messages import Busy
from asyncrl.runtime.run_dir import LOCK, METRICS, STALL, STATUS, SUMMARY


@contextmanager
def alive(run: Path) -> Iterator[None]:
    """The run lives, because somebody holds its lock."""
    with (run / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def now() -> float:
    return 1e9 + trio.current_time()


def say(run: Path, **changes: object) -> None:
    run_status.write(status(**({"at": now()} | changes)), run / STATUS)


def lines_of(output: io.StringIO) -> list[str]:
    return output.getvalue().splitlines()


async def test_it_follows_a_run_from_before_it_begins_until_it_ends(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    run, output = make_run(tmp_path / "r"), io.StringIO()
    began = trio.current_time()

    async def live(task_status: trio.TaskStatus[None]) -> None:
        with alive(run):
            task_status.started()
            await trio.sleep(5.5)
            say(run, step=0, seconds=1.0)
            await trio.sleep(1)
            for version in range(1, 4):
                with (run / METRICS).open("ab") as file:
                    whole = line_of(step(version, reward=version / 8))
                    file.write(whole[:40])
                    file.flush()
                    await trio.sleep(EVERY_S)  # it is looked at while it is half written
                    file.write(whole[40:])
                say(run, step=version, seconds=10.0 * version)
                await trio.sleep(5)
            with (run / METRICS).open("ab") as file:
                file.write(line_of(evaluation(3, 0.75)))
            say(run, step=3, ok=True, reason="done")
            await trio.sleep(3)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(live)
            with Display(Console(file=output)) as display:
                await follow(run, display, now)
    assert 24 < trio.current_time() - began < 30
    shown = lines_of(output)
    assert "waiting for the run to begin" in shown[0]
    for at, text in enumerate(
        ["step 0/100  reward –", "reward 0.12", "reward 0.25", "reward 0.38"]
    ):
        assert text in shown[1 + at], shown
    assert "over  step 3/100" in shown[-1] and "accuracy 0.750 (version 3)" in shown[-1]


async def test_it_ends_with_a_run_that_is_killed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    run, output = make_run(tmp_path / "r", [step(1)]), io.StringIO()

    async def live(task_status: trio.TaskStatus[None]) -> None:
        with alive(run):
            say(run)
            task_status.started()
            await trio.sleep(60)  # its coordinator hangs meanwhile
        # nothing was written

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            await nursery.start(live)
            with Display(Console(file=output)) as display:
                await follow(run, display, now)
    assert trio.current_time() >= 60
    hung = [text for text in lines_of(output) if "it has not reported for" in text]
    assert len(hung) >= 4 and hung[0] < hung[-1]  # the clock goes on


async def test_a_launcher_that_does_not_end_is_not_waited_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    run = make_run(tmp_path / "r")
    say(run, ok=True, reason="done")
    with alive(run), trio.fail_after(100), Display(Console(file=io.StringIO())) as display:
        await follow(run, display, now)
    assert LAST_WORDS_S <= trio.current_time() < LAST_WORDS_S + 2


async def test_a_curve_that_a_resume_has_cut_is_read_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [step(1), step(2)])
    curve = curve_of(run)
    assert curve.replaced() and [point.version for point in curve.added()] == [1, 2]
    assert not curve.replaced() and not list(curve.added())
    (run / METRICS).write_bytes(line_of(step(1)))
    assert curve.replaced() and [point.version for point in curve.added()] == [1]
    (run / METRICS).unlink()
    assert not curve.replaced() and not list(curve.added())


def actor(name: str, **changes: object) -> ActorStatus:
    settings = {
        "name": name, "role": name.partition("-")[0], "here": True, "incarnation": 0, "pid": 1,
        "seconds": 1.0,
    }  # fmt: skip
    return ActorStatus(**(settings | changes))  # type: ignore[arg-type]


STILL = {"token_s": 60.0, "verdict_s": 60.0, "step_s": 60.0}


@pytest.mark.parametrize(
    ("found", "note"),
    [
        (status(), ""),
        (
            status(phase="init", actors=[actor("trainer-0", here=False)]),
            "waiting for trainer-0",
        ),
        (status(actors=[actor("rollout-1", here=False, removed="x")]), "without rollout-1"),
        (
            status(failing=[FailedEpisodes(name="agents-0", episodes=9, reason="x")]),
            "agents-0 fails",
        ),
        (status(evaluating=4), "evaluating version 4"),
        (
            status(**STILL, actors=[actor("trainer-0", busy=Busy("checkpoint", 90.0))]),
            "the trainer is at one checkpoint for 90 s",
        ),
    ],
)
def test_notes_say_what_is_not_as_usual(found: RunStatus, note: str) -> None:
    assert update_of(found, None, None, 0.0).note == note


def test_the_numbers_are_those_of_the_status_and_of_the_last_step() -> None:
    last = step(7, metrics={"exact": 0.5, "truncated": None, "response_tokens": 9.0})
    shown = line(update_of(status(phase="drain"), last, evaluation(4, 0.625), 0.0))
    for text in (
        "8:20  draining  step 12/100  reward 0.07",
        "held-out accuracy 0.625 (version 4)  responses 50% exact, – cut  length 9.0 tokens",
        "entropy – nats a token  tokens/s 1,234 generated, 1,200 trained  lag 0.50 mean, 1 max",
        "queue 3 rollouts, 999 B  idle 50% trainer, 25% rollout  pause 250 ms",
    ):
        assert text in shown
    assert "reward –" in line(update_of(status(), None, None, 0.0))


def test_a_run_that_is_over_is_shown_with_its_end_and_its_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r", [step(1)], status=status(ok=False, reason="the disk is full"))
    summary.write(
        summary.Summary(ok=False, reason="the disk is full", steps=1, seconds=2.0), run / SUMMARY
    )
    assert main(["top", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "The run failed" in shown and "kept in" in shown and "not reported" not in shown
    run_status.write(status(), run / STALL)
    assert main(["top", str(run)]) == 0
    assert "The run stalled" in capsys.readouterr().out


def test_what_others_wrote_is_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r", [step(1, metrics={HOSTILE: 1.0})], status=hostile_status())
    summary.write(HOSTILE_SUMMARY, run / SUMMARY)
    assert main(["top", str(run)]) == 0
    shown = capsys.readouterr().out
    assert all(one.isprintable() for one in shown.replace("\n", ""))


def test_bad_input_is_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r")
    for path, said in (
        (tmp_path / "none", "there is no such directory"),
        (tmp_path, "no run.toml in it"),
        (run, "ended before it began"),
    ):
        assert main(["top", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and said in err
    (run / STATUS).write_bytes(b"{")
    assert main(["top", str(run)]) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.processes
def test_ctrl_c_ends_the_display_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [step(1)], status=status())
    before = (run / STATUS).read_bytes()
    command = [sys.executable, "-m", "asyncrl.cli", "top", str(run)]
    with (
        alive(run),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child,
    ):
        try:
            assert child.stdout is not None
            assert "training  step 12/100" in child.stdout.readline()
            child.send_signal(signal.SIGINT)
            _, err = child.communicate(timeout=300)
        finally:
            child.kill()  # else the end of the block waits for it
        assert child.returncode == 130 and err == ""
    assert (run / STATUS).read_bytes() == before


async def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", status=status())
    (run / METRICS).unlink()
    (run / METRICS).mkdir()
    with pytest.raises(ConfigError, match="cannot be read"), Display(Console()) as display:
        await follow(run, display, now)
    assert msgspec.json.decode((run / STATUS).read_bytes())
