"""The launcher's last words, whatever the run has left. Real processes: `test_train.py`."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
import trio
from rich.console import Console

from asyncrl import files
from asyncrl.actors.disk_exit import exit_by_disk
from asyncrl.config import Config
from asyncrl.config.errors import DISK_NOT_READY
from asyncrl.exit_status import FAILED
from asyncrl.explain import summary
from asyncrl.journal import JournalNotReady
from asyncrl.launch import launcher
from asyncrl.launch.launcher import _Launch
from asyncrl.messages import Exited, RunFinished
from asyncrl.runtime.processes.healing import lost_head
from asyncrl.runtime.processes.run_supervisor import SupervisedEnd
from asyncrl.runtime.processes.supervisor import ActorFailed
from asyncrl.runtime.processes.told_to_end import obeying
from asyncrl.runtime.run_dir import INITIAL, JOURNAL, KEY, LAST_STATUS, STATUS, SUMMARY
from asyncrl.sandbox import opened
from asyncrl.training.checkpoint_index import CheckpointError


def launched(run: Path) -> _Launch:
    """A launcher of a run that is resumed."""
    return _Launch(msgspec.convert({"run": {"dir": str(run)}}, Config), True, Console())


def ended(run: Path) -> int:
    """The exit status after a coordinator that failed without a summary."""
    failure = ActorFailed("coordinator-0", 1, "OSError: what it died of")
    return launched(run)._report(SupervisedEnd(None, failure))


def test_a_damaged_journal_does_not_hide_what_the_run_died_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / JOURNAL).write_bytes(b"no journal" * 1000)
    assert ended(tmp_path) == FAILED
    said = capsys.readouterr().err
    assert "no summary" in said and "it is damaged, or not a journal" in said
    assert "what it died of" in said.splitlines()[-1]


def test_a_disk_without_room_for_the_summary_does_not_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / JOURNAL).touch()
    monkeypatch.setattr(summary, "write", full)
    assert ended(tmp_path) == FAILED and not (tmp_path / SUMMARY).exists()
    said = capsys.readouterr().err
    assert "No space left on device" in said and "what it died of" in said.splitlines()[-1]


NOT_WRITTEN = "the journal j could not be written, for 30 s: make room, and resume the run"


@pytest.mark.parametrize(
    "end",
    [
        SupervisedEnd(RunFinished(False, NOT_WRITTEN)),  # it could say so
        SupervisedEnd(RunFinished(False, "5 publications failed, the last for no store")),
        SupervisedEnd(None, ActorFailed("coordinator-0", DISK_NOT_READY, "")),  # nor its log
        SupervisedEnd(
            RunFinished(False, NOT_WRITTEN), unrestarted=(Exited("trainer", 0, 1, False),)
        ),
    ],
)
def test_a_disk_that_takes_nothing_is_said_in_one_sentence_though_nothing_can_be_written(
    end: SupervisedEnd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "whole_file", takes_no_file)
    assert lost_head(end) is None
    assert launched(tmp_path)._report(end) == FAILED
    [said] = capsys.readouterr().err.splitlines()
    assert said.count("make room, and resume") == 1 and str(tmp_path) in said
    assert not any(tmp_path.iterdir())


@contextmanager
def takes_no_file(*_: object, **__: object) -> Iterator[BinaryIO]:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    yield


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room, or have the quota raised"),
        (errno.EROFS, "mount its disk so that it is writable"),
        (errno.EIO, ""),
    ],
)
async def test_a_life_is_not_begun_on_a_disk_that_takes_nothing(
    error: int,
    then: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever ended the one before. Any other error is left to the next life, which names it."""

    class Supervisor:
        def __init__(self, *_: object) -> None:
            lives.append(True)

        async def run(self) -> SupervisedEnd:
            await trio.lowlevel.checkpoint()
            return SupervisedEnd(None, ActorFailed("trainer-0", -9, ""))

    def full(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    lives: list[bool] = []
    monkeypatch.setattr(launcher, "RunSupervisor", Supervisor)
    launch = launched(tmp_path)
    monkeypatch.setattr(files, "whole_file", full)
    end = await launch._live()
    healed = Config().supervision.heals if error == errno.EIO else 0
    assert len(lives) == 1 + healed
    assert launch._report(end) == FAILED
    said = capsys.readouterr().err
    assert f": {then}, and resume the run" in said if then else "resume the run" not in said
    assert "trainer-0" in said


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_a_signal_between_two_lives_ends_the_run(
    number: signal.Signals,
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor that it interrupts is over, and the next one would not know of it. It ends as
    asked, for it would have healed."""

    class Supervisor:
        def __init__(self, *_: object) -> None:
            self.connected = not lives
            lives.append(True)

        async def run(self) -> SupervisedEnd:
            await trio.lowlevel.checkpoint()
            return SupervisedEnd(None, ActorFailed("coordinator-0", -9, ""))

        def interrupt(self) -> str:
            noticed.set()
            return "over"

    async def told_to_end() -> None:
        os.kill(os.getpid(), number)
        with trio.fail_after(60):
            await noticed.wait()

    lives: list[bool] = []
    noticed = trio.Event()
    monkeypatch.setattr(launcher, "RunSupervisor", Supervisor)
    launch = launched(tmp_path)
    monkeypatch.setattr(launch, "_end_left", told_to_end)
    async with obeying(launch._obey):
        end = await launch._live()
    assert len(lives) == 2 and launch._report(end) == status
    said = capsys.readouterr()
    assert said.err == "" and "coordinator-0 was lost" in said.out and "Draining" not in said.out


async def test_without_notes_the_end_of_a_run_needs_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory for a new thread, Python waits for its start without end."""
    begun = list[object]()

    async def in_thread(work: Callable[[], list[object]]) -> list[object]:
        begun.append(work)
        return []

    monkeypatch.setattr(trio.to_thread, "run_sync", in_thread)
    launch = launched(tmp_path)
    await launch._end_left()
    (tmp_path / opened.FOLDER).mkdir()
    await launch._end_left()
    assert not begun
    (tmp_path / opened.FOLDER / "agents-0.r1-1").mkdir()
    await launch._end_left()
    assert len(begun) == 1


def test_the_next_life_keeps_the_status_of_the_one_before(tmp_path: Path) -> None:
    for name in (STATUS, SUMMARY, ".summary.json.01.partial"):
        (tmp_path / name).write_text(name)
    launched(tmp_path)._clear()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {LAST_STATUS: STATUS}


def test_a_disk_behind_an_error_is_the_exit_status() -> None:
    full = OSError(errno.EDQUOT, "quota")
    for error in (
        full,
        ExceptionGroup("", [ValueError(), ExceptionGroup("", [JournalNotReady("no room")])]),
        ExceptionGroup("", [CheckpointError("not written")]),
    ):
        with pytest.raises((SystemExit, ExceptionGroup)) as ended, exit_by_disk():
            raise error
        code = ended.value.code if isinstance(ended.value, SystemExit) else 1
        behind = error is full or "no room" in repr(error)
        assert code == (DISK_NOT_READY if behind else 1)


class _Silent:
    """A child that reads a large checkpoint, and has not said anything yet."""

    pid = 1

    async def wait(self) -> int:
        await trio.sleep_forever()
        raise AssertionError

    def kill(self) -> None:
        raise AssertionError("nobody replaces it")

    displaced = False

    async def kill_group(self) -> int:
        return -9

    def tail(self) -> str:
        return ""


class _Silence:
    """A fork server whose children are silent."""

    async def settled(self) -> None:
        pass

    def start(self, *_: object, **__: object) -> _Silent:
        return _Silent()


@asynccontextmanager
async def silence(*_: object, **__: object) -> AsyncIterator[_Silence]:
    yield _Silence()


@pytest.mark.explore
async def test_a_coordinator_has_as_long_to_begin_as_run_start_s_says(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A coordinator that resumes reads a checkpoint and the journal first, and these can be of any
    size."""
    monkeypatch.setattr(launcher, "open_fork_server", silence)
    (tmp_path / INITIAL).mkdir()
    launch = _Launch(
        msgspec.convert(
            {"run": {"dir": str(tmp_path)}, "supervision": {"start_s": 4000.0}}, Config
        ),
        True,
        Console(),
    )
    assert await launch.run() == FAILED
    assert trio.current_time() >= 4000.0
    assert "nothing within 4000 s of its start (supervision.start_s)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/proc"), "Too many open files: '/proc'"),
        (MemoryError(), "no memory is left"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_a_launcher_without_room_ends_in_a_sentence(
    error: Exception,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def fails(*_: object, **__: object) -> AsyncIterator[_Silence]:
        (tmp_path / "weights.store").touch()
        raise error
        yield _Silence()

    monkeypatch.setattr(launcher, "open_fork_server", fails)
    config = msgspec.convert({"run": {"dir": str(tmp_path)}}, Config)
    assert launcher.launch(config, resume=None, console=Console()) == FAILED
    said = capsys.readouterr()
    assert words in said.err and "continue with --resume" in said.err
    assert "Traceback" not in said.out + said.err and len(said.err.splitlines()) == 1
    assert "Traceback" in (tmp_path / "logs" / "launcher-0.log").read_text()
    assert not (tmp_path / "weights.store").exists()


class _Leaving(_Silent):
    """A coordinator that is killed amid its work."""

    def __init__(self, run: Path) -> None:
        self._run = run

    async def wait(self) -> int:
        for name in ("coordinator.sock", "ranks.sock"):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(self._run / name))
        for name in ("weights.store", "ranks.store", ".summary.json.0123.partial"):
            (self._run / name).touch()
        for name in ("checkpoints/.partial-step-000004", ".partial-model"):
            (self._run / name).mkdir(parents=True)
            (self._run / name / "model.safetensors").touch()
        return -9


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def test_a_run_that_is_over_leaves_nothing_of_what_its_actors_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Sockets, stores and parts of files are of no use to anything that comes after."""

    class Leaves(_Silence):
        def start(self, *_: object, **__: object) -> _Silent:
            return _Leaving(tmp_path)

    @asynccontextmanager
    async def leaves(*_: object, **__: object) -> AsyncIterator[_Silence]:
        yield Leaves()

    monkeypatch.setattr(launcher, "open_fork_server", leaves)
    (tmp_path / INITIAL).mkdir()
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    settings = {"run": {"dir": str(tmp_path)}, "supervision": {"heals": 0}}
    launch = _Launch(msgspec.convert(settings, Config), False, Console())
    assert await launch.run() == FAILED
    assert _names(tmp_path) == {
        INITIAL,
        KEY,
        "checkpoints",
        "checkpoints/step-000002",
        "logs",
        "logs/launcher-0.log",
    }
