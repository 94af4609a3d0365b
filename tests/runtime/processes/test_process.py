from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest
import trio
from process_support import BECOME, FOREVER, GRANDCHILD, forking, gone, lives, said

from asyncrl.runtime.processes import process as process_module
from asyncrl.runtime.processes.process import (
    Process,
    become_child,
    last_traceback,
    last_words,
    spawn,
)


@pytest.fixture(params=["spawned", "forked"])
async def start(request, tmp_path):
    """Starts a child that runs some code, in each of the two ways, which promise the same."""

    def spawned(code: str, **options) -> Process:
        return spawn(
            "actor-0", [sys.executable, "-c", BECOME + code], log=tmp_path / "log", **options
        )

    if request.param == "spawned":
        yield spawned
        return
    async with forking(tmp_path) as fork:
        yield lambda code, **options: fork.start(BECOME + code, **options)
        assert not fork.lost


pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("code", "expected"),
    [("", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("os.abort()", -6), ("1/0", 1)],
)
async def test_the_exit_code_is_the_childs(start, code, expected):
    process = start(code)
    assert await process.wait() == expected
    assert await process.wait() == expected
    assert await process.kill_group() == expected
    process.terminate()


@pytest.mark.explore
async def test_nothing_is_imported_from_the_current_directory(tmp_path, monkeypatch):
    """Of an actor, of the fork server, and of what that forks: a user's folder of data may hold
    anything. What PYTHONPATH names is imported still."""
    here, named = tmp_path / "here", tmp_path / "named"
    for folder in (here, named):
        folder.mkdir()
    for name in ("trio", "msgspec", "encodings_of_mine"):
        (here / f"{name}.py").write_text("open('ran', 'w')\n")
    (named / "mine.py").write_text("")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(named), *filter(None, sys.path)]))
    for arguments in (["-m", "asyncrl.actors", "--help"], ["-c", BECOME + "import mine"]):
        process = spawn("actor-0", [sys.executable, *arguments], log=tmp_path / "log")
        assert await process.wait() == 0, process.tail()
    async with forking(tmp_path) as fork:
        process = fork.start(BECOME + "import mine")
        assert await process.wait() == 0, process.tail()
        process = fork.start(BECOME + "import encodings_of_mine")
        assert await process.wait() == 1
        assert not fork.lost
    assert not (here / "ran").exists()


async def test_many_may_wait(start):
    process = start(FOREVER)
    codes = []

    async def wait() -> None:
        codes.append(await process.wait())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        with trio.move_on_after(0.01):
            await process.wait()
        process.signal(signal.SIGKILL)
    assert codes == [-9] * 3


async def test_a_child_may_end_by_itself_when_asked(start):
    process = start(
        "signal.signal(15, lambda *_: sys.exit(7)); print('ready', flush=True)\n" + FOREVER
    )
    await said(process, 1)
    process.terminate()
    assert await process.wait() == 7


async def test_what_a_child_leaves_behind_is_killed_before_its_end_is_known(start):
    process = start(GRANDCHILD * 3)
    assert await process.wait() == 0
    pids = [int(line) for line in process.log.read_text().splitlines()]
    assert len(pids) == 3 and not any(map(lives, pids))


async def test_the_group_is_dead_when_kill_returns_although_cancelled(start):
    process = start(GRANDCHILD + FOREVER)
    (grandchild,) = map(int, await said(process, 1))
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await process.kill_group() == -9
    assert not lives(process.pid) and not lives(grandchild)


async def test_what_left_the_group_is_killed_too(start):
    """Verifiers lead groups of their own, and what they start is in those."""
    process = start(GRANDCHILD.replace("Popen([", "Popen(process_group=0, args=[") + FOREVER)
    (grandchild,) = map(int, await said(process, 1))
    assert os.getpgid(grandchild) == grandchild
    await process.kill_group()
    assert not lives(grandchild)


async def test_a_session_that_does_not_end_in_time_has_the_signal_all_the_same(
    start, monkeypatch, capsys
):
    """As on a machine with a load of 100: each of many programs leads a group of its own."""
    many = 12
    program = GRANDCHILD.replace("Popen([", "Popen(process_group=0, args=[")
    process = start(f"for _ in range({many}): {program}" + FOREVER)
    pids = [int(line) for line in await said(process, many)]
    monkeypatch.setattr("asyncrl.runtime.processes.process.KILL_S", 0.0)
    assert await process.kill_group() == -9
    for pid in pids:
        await gone(pid)
    assert f"(process {process.pid}) is not dead 0 s after SIGKILL" in capsys.readouterr().err
    monkeypatch.undo()
    assert await process.wait() == -9 and not any(map(lives, [process.pid, *pids]))


async def test_a_parent_without_room_for_files_learns_of_the_end(start, monkeypatch):
    """It can neither look at the session nor read the log, for a while or for good."""

    def full(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    looked = []

    def once(*args):
        looked.append(args)
        return full() if len(looked) == 1 else living()

    living = process_module._living
    monkeypatch.setattr(process_module, "_LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(process_module, "_living", once)
    program = GRANDCHILD.replace("Popen([", "Popen(process_group=0, args=[")
    process = start(program + "sys.exit(3)")
    assert await process.wait() == 3 and len(looked) > 1
    assert not lives(int(process.log.read_text()))
    monkeypatch.setattr(process_module, "_living", full)
    monkeypatch.setattr(process_module, "KILL_S", 0.05)
    monkeypatch.setattr(Path, "open", full)
    process = start("sys.exit(4)")
    with trio.fail_after(60):
        assert await process.wait() == 4 and await process.kill_group() == 4
    assert "Too many open files" in process.tail()


async def test_a_child_that_cannot_be_watched_is_not_left(tmp_path, monkeypatch):
    started = []

    def full(pid):
        started.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    with pytest.raises(OSError, match="Too many"):
        spawn("actor-0", [sys.executable, "-c", BECOME + FOREVER], log=tmp_path / "log")
    assert not any(map(lives, started)) and started


async def test_a_child_dies_with_its_parent(tmp_path):
    """A parent killed by SIGKILL cleans nothing up; the child is not even in its group."""
    launcher = (
        "import sys, signal, trio\nfrom pathlib import Path\nfrom "
        "asyncrl.runtime.processes.process "
        "import spawn\n"
        f"async def main():\n p = spawn('x', [sys.executable, '-c', {BECOME + FOREVER!r}], "
        f"log=Path({str(tmp_path / 'child')!r}))\n"
        " print(p.pid, flush=True)\n await trio.sleep_forever()\n"
        "from asyncrl.runtime.processes.process import become_child; become_child()\ntrio.run(main)"
    )
    process = spawn("launcher", [sys.executable, "-c", launcher], log=tmp_path / "log")
    (child,) = map(int, await said(process, 1))
    assert lives(child) and os.getpgid(child) != os.getpgid(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    await gone(child)
    assert not lives(child)
    assert await process.wait() == -9


async def test_a_child_whose_parent_has_gone_ends(start, tmp_path):
    process = start("print('unreachable')", env={"_ASYNCRL_PARENT_PID": "1"})
    assert await process.wait() == 1
    assert process.log.read_text() == ""


def test_only_a_child_becomes_one():
    with pytest.raises(RuntimeError, match="asyncrl train"):
        become_child()


async def test_only_the_main_thread_starts_children(start):
    with pytest.raises(RuntimeError, match="main thread"):
        await trio.to_thread.run_sync(start, "")


async def test_a_child_has_its_cores_from_its_first_instruction(start):
    cores = {max(os.sched_getaffinity(0))}
    mine = os.sched_getaffinity(0)
    process = start(
        "print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], os.environ['X'])",
        cores=cores,
        env={"X": "y"},
    )
    assert await process.wait() == 0
    assert process.log.read_text() == f"{sorted(cores)} 1 y\n"
    assert os.sched_getaffinity(0) == mine


async def test_the_parents_number_is_not_inherited_by_grandchildren(start):
    process = start("print([k for k in os.environ if 'ASYNCRL' in k])")
    await process.wait()
    assert process.log.read_text() == "[]\n"


async def test_the_tail_is_this_incarnations(start):
    """Incarnations share a log; the tail of each begins where it began."""
    first = start("print('before'); raise ValueError('first')")
    await first.wait()
    assert first.tail().startswith("Traceback (most recent call last):") and first.tail().endswith(
        "ValueError: first"
    )
    second = start("print('bye')")
    await second.wait()
    assert second.tail() == "bye"
    third = start("print('x' * 999_999); raise ValueError('third')")
    await third.wait()
    assert third.tail().startswith("Traceback") and third.tail().endswith("ValueError: third")


async def test_a_native_crash_leaves_its_stack(start):
    process = start("import ctypes; ctypes.string_at(0)")
    assert await process.wait() == -signal.SIGSEGV
    assert "Segmentation fault" in process.tail() and "string_at" in process.tail()


def test_a_traceback_is_kept_with_what_led_to_it():
    text = "noise\nTraceback (most recent call last):\n  old\nOldError\nmore\n"
    chain = (
        "Traceback (most recent call last):\n  a\nKeyError: 1\n\nThe above exception was the "
        "direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n  b\nValueError: 2\n\nDuring handling of the above "
        "exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  c\nRuntimeError: 3"
    )
    assert last_traceback(text + chain + "\n") == chain
    group = "  + Exception Group Traceback (most recent call last):\n  | x\n  +-+---\n"
    group += "    | Traceback (most recent call last):\n    | y\n    +---"
    assert last_traceback(text + group) == group
    assert last_traceback("".join(f"{i}\n" for i in range(100))).splitlines() == [
        str(i) for i in range(80, 100)
    ]
    assert last_traceback("") == ""


def test_last_words_are_an_exception_where_there_is_one() -> None:
    group = (
        "  + Exception Group Traceback (most recent call last):\n  |   File x\n    | "
        "a.b.ServerGone: the server is gone; its log:\n"
    )
    group += (
        "    |   File y, line 1\n    | ValueError: no memory is left\n    | \n    | [12:00] "
        "somebody killed it\n    +-------------\n"
    )
    assert last_words(group) == "ValueError: no memory is left"
    assert last_words("Traceback (most recent call last):\nzlib.Error: x\n") == "zlib.Error: x"
    assert last_words("one\n two \n\n") == "two" and last_words(" \n") == "it printed nothing"
