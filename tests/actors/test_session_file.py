"""Sessions on disk: whole lines, no more than may be, and a run that goes on without room."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.reporting import Reporter
from actors.session_file import RETRY_S, SessionFile, write_sessions
from asyncrl.ipc.waits import Waits
from asyncrl.sessions.finished import FinishedSession


def finished(name: str) -> FinishedSession:
    return FinishedSession(name, "rewarded", 1.0, None, 1, 0, 0, {}, ())


def names(path: Path) -> list[str]:
    lines = path.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    return [msgspec.json.decode(line, type=FinishedSession).session for line in lines]


class FakeGateway:
    """Sessions to fetch, and what was said of the last one that was to be written."""

    def __init__(self) -> None:
        self.send, self.receive = trio.open_memory_channel[FinishedSession](10)
        self.said: list[str | None] = []

    async def fetch(self) -> FinishedSession:
        return await self.receive.receive()

    def written(self, error: str | None) -> None:
        self.said.append(error)


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_session_is_written_where_no_descriptor_is_left(tmp_path: Path) -> None:
    """A rollout actor ended here, by EMFILE."""
    path = tmp_path / "sessions.jsonl"
    file = SessionFile(path, 1 << 20)
    with no_descriptors():
        with pytest.raises(OSError, match="open files"):
            path.open()
        file.append(finished("a"))
    file.close()
    assert names(path) == ["a"]


@given(whole=st.integers(0, 3), cut=st.integers(0, 300_000))
def test_a_line_that_a_kill_cut_is_taken_away(
    tmp_path_factory: pytest.TempPathFactory, whole: int, cut: int
) -> None:
    path = tmp_path_factory.mktemp("run") / "sessions.jsonl"
    file = SessionFile(path, 1 << 20)
    for name in range(whole):
        file.append(finished(str(name)))
    file.close()
    path.write_bytes(path.read_bytes() + b"x" * cut)
    file = SessionFile(path, 1 << 20)
    file.append(finished("last"))
    file.close()
    assert names(path) == [*map(str, range(whole)), "last"]


def test_a_disk_that_refuses_amid_a_line_leaves_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, given = tmp_path / "sessions.jsonl", os.write, 0
    file = SessionFile(path, 1 << 20)
    file.append(finished("a"))

    def full(descriptor: int, data: bytes) -> int:
        nonlocal given
        given += 1
        if given == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        file.append(finished("b"))
    monkeypatch.undo()
    file.append(finished("c"))
    assert names(path) == ["a", "c"]


def test_a_full_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    file = SessionFile(path, 200)
    while file.full is None:
        file.append(finished("a"))
    assert 200 <= path.stat().st_size < 400 and "gateway.session_bytes" in file.full
    file.append(finished("it was open"))
    file.close()
    assert SessionFile(path, 200).full, "an actor that is started again knows"


async def test_what_cannot_be_written_waits_and_the_run_goes_on(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(function: object, *given: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*given)  # type: ignore[operator]

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    gateway, waits, close = FakeGateway(), Waits(), trio.Event()
    reporter, path, broken = Reporter(waits), tmp_path / "sessions.jsonl", True
    file, append = SessionFile(path, 1 << 20), SessionFile.append

    def sometimes(self: SessionFile, session: FinishedSession) -> None:
        if broken:
            raise OSError(errno.EMFILE, "Too many open files")
        append(self, session)

    monkeypatch.setattr(SessionFile, "append", sometimes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_sessions, gateway, file, reporter, waits, close)
        gateway.send.send_nowait(finished("a"))
        await trio.sleep(2.5 * RETRY_S)
        assert names(path) == [] and "Too many open files" in str(gateway.said[-1])
        assert [wait.name for wait in waits.table()] == ["room for sessions"]
        broken = False
        await trio.sleep(RETRY_S)
        assert names(path) == ["a"] and gateway.said[-1] is None
        broken = True
        gateway.send.send_nowait(finished("b"))
        gateway.send.send_nowait(finished("c"))
        await trio.sleep(1)
        close.set()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    counts = reporter.take().counts
    assert counts["sessions_rewarded"] == 3 and counts["sessions_lost"] == 2
    assert counts["sessions_unwritten"] == 6
