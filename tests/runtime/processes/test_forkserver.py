"""The fork server: who dies with whom, whatever dies first; and an actor that it forks is as good
as a spawned one. What `process.py` promises is tested of both in `test_process.py`."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import sys
from pathlib import Path

import process_support
import pytest
import trio
from process_support import BECOME, FOREVER, Forking, forking, gone, lives, said
from some_values import some

from asyncrl.runtime.processes import forkserver
from asyncrl.runtime.processes.process import Process, spawn

pytestmark = pytest.mark.processes
REPORT = BECOME + (
    """
import fcntl, gc, json, random, resource, threading
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
here = open("/proc/self/stat").read().rpartition(")")[2].split()
print(json.dumps({
    "parent": os.getppid(),
    "leads": (os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()),
    "terminal": here[4],
    "cores": sorted(os.sched_getaffinity(0)),
    "environment": dict(os.environ),
    "arguments": len(sys.argv),
    "files": sorted(os.listdir("/proc/self/fd"))[:4],
    "input": os.readlink("/proc/self/fd/0"),
    "outputs": [os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2)],
    "append": bool(fcntl.fcntl(1, fcntl.F_GETFL) & os.O_APPEND),
    "unbuffered": sys.stdout.write_through,
    "signals": [status[key] for key in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd", "NoNewPrivs")],
    "limits": [resource.getrlimit(kind) for kind in range(16)],
    "nice": os.nice(0), "umask": os.umask(0), "folder": os.getcwd(),
    "hash": hash("a string"), "collects": gc.isenabled(),
    "threads": [thread.name for thread in threading.enumerate()],
    "main": threading.current_thread() is threading.main_thread(),
}))
"""
)
GO = "os.write(1, b'ran\\n'); "


@pytest.fixture
async def fork(tmp_path):
    async with forking(tmp_path) as fork:
        yield fork


def told(pid: int, what: str) -> str:
    """A file of /proc/PID."""
    return Path(f"/proc/{pid}/{what}").read_text()


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def parent(pid: int) -> int:
    return int(told(pid, "stat").rpartition(")")[2].split()[1])


def children() -> set[int]:
    """All children of this process, dead ones too."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if parent(int(entry.name)) == os.getpid():
                    found.add(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def forked(process: Process) -> bool:
    """True if it was forked: its program is the server's, which `ps` is not shown."""
    return "code_server.py" in process.log.read_text()


SAY = BECOME + "print(sys.modules['__main__'].__file__, flush=True)\n"


# ----------------------------------------------------------------------------------- as good as new


async def test_a_forked_actor_is_what_a_spawned_one_is(fork: Forking, tmp_path: Path) -> None:
    """All that a process can see of itself but its number is the same."""
    cores, env = {min(os.sched_getaffinity(0))}, {"X": "y", "PYTHONHASHSEED": "0"}
    argv = [sys.executable, "-m", "forked_code", REPORT]
    reports = []
    async with forking(tmp_path, PYTHONHASHSEED="0") as fork:
        for process in (
            spawn("actor-0", argv, log=tmp_path / "log", cores=cores, env=env),
            fork.start(REPORT, cores=cores, env=env),
        ):
            assert await process.wait() == 0, process.tail()
            reports.append(json.loads(process.log.read_text().splitlines()[-1]))
        assert not fork.lost
    spawned, forked = reports
    assert forked["parent"] == os.getpid() and forked["leads"] == [True, True]
    assert forked["environment"]["OMP_NUM_THREADS"] == "1"
    # the listing itself is the fourth
    assert forked["files"] == ["0", "1", "2", "3"]
    assert forked == spawned


async def test_nothing_of_a_start_is_left(fork: Forking) -> None:
    """No descriptor, no zombie, no child but the server; and orphans are nobody's again.

    Children of earlier tests may end meanwhile, so that there may be fewer than before."""
    had, opened = children(), descriptors()
    for number in range(5):
        process = fork.start(BECOME + f"sys.exit({number})")
        assert await process.wait() == number
    assert children() <= had and descriptors() <= opened
    adopts = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(adopts))
    assert adopts.value == 0


async def test_an_actor_is_a_child_of_the_launcher_and_not_of_the_server(fork: Forking) -> None:
    process = fork.start(SAY + FOREVER)
    await said(process, 1)
    assert forked(process) and parent(process.pid) == os.getpid()
    await process.kill_group()


async def test_ps_shows_the_actor_and_not_the_server(fork: Forking) -> None:
    code = SAY + FOREVER
    process = fork.start(code)
    await said(process, 1)
    shown = told(process.pid, "cmdline").rstrip("\0").split("\0")
    assert shown[:3] == [sys.executable, "-m", "forked_code"]
    assert code.startswith("\0".join(shown[3:])), "as much of it as there is room for"
    variable = next(iter(os.environ))
    assert told(process.pid, "environ").startswith(f"{variable}={os.environ[variable]}\0"), (
        "the environment lies behind it, and is whole"
    )
    await process.kill_group()


async def test_an_actor_ends_as_a_program_does(fork: Forking, tmp_path: Path) -> None:
    """Exit handlers run, and buffers are written."""
    code = "import atexit; atexit.register(print, 'bye'); open('/dev/fd/1', 'a').write('last ')"
    assert await fork.start(BECOME + code).wait() == 0
    assert (tmp_path / "log").read_text().split() == ["last", "bye"]


# --------------------------------------------------------------------------------- where it is lost


async def test_a_killed_server_harms_no_actor_and_the_next_one_is_spawned(fork: Forking) -> None:
    first = fork.start(SAY + "signal.signal(15, lambda *_: sys.exit(7))\n" + FOREVER)
    await said(first, 1)
    server = fork.server._process
    os.kill(server.pid, signal.SIGKILL)
    assert await server.wait() == -9
    await trio.testing.wait_all_tasks_blocked()
    assert fork.lost == [
        "The fork server was killed by SIGKILL. Actors are started without it, some seconds slower."
    ]
    second = fork.start(BECOME + "sys.exit(3)")
    assert await second.wait() == 3
    assert lives(first.pid) and forked(first)
    first.terminate()
    assert await first.wait() == 7
    assert len(fork.lost) == 1


async def test_a_server_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "ANSWER_S", 0.2)
    async with forking(tmp_path) as fork:
        fork.server._process.signal(signal.SIGSTOP)
        process = fork.start(SAY)
        assert await process.wait() == 0 and not forked(process)
        assert fork.lost == [
            "The fork server did not answer within 0.2 s. Actors are started without it, some "
            "seconds slower."
        ]
    assert (tmp_path / "log").read_text().count("\n") == 1, "it runs once"


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (
            "from threading import *; Thread(target=Event().wait, daemon=True).start()",
            "does not fork: it has 2 threads",
        ),
        ("file = open('/dev/zero')", "does not fork: it has /dev/zero open"),
        (
            "raise ImportError('no torch')",
            "ended with exit code 1; its last words: ImportError: no",
        ),
        ("import os; os._exit(0)", "ended with exit code 0"),
    ],
)
async def test_a_server_that_cannot_fork_safely_is_not_used(
    tmp_path: Path, before: str, why: str
) -> None:
    async with forking(tmp_path, before) as fork:
        process = fork.start(SAY)
        assert await process.wait() == 0 and not forked(process)
        await fork.server._process.wait()
        await trio.testing.wait_all_tasks_blocked()
    (lost,) = fork.lost
    assert lost.startswith(f"The fork server {why}")


async def test_a_thread_that_begins_later_is_seen_before_each_fork(tmp_path: Path) -> None:
    before = (
        "import signal, threading\n"
        "thread = threading.Thread(target=threading.Event().wait, daemon=True)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: thread.start())"
    )
    async with forking(tmp_path, before) as fork:
        assert await fork.start(SAY).wait() == 0
        fork.server._process.signal(signal.SIGUSR1)
        with trio.fail_after(30):
            while "Threads:\t1" in told(fork.server._process.pid, "status"):
                await trio.lowlevel.checkpoint()
        assert await fork.start(SAY).wait() == 0
        text = (tmp_path / "log").read_text().splitlines()
        assert [Path(line).name for line in text] == ["code_server.py", "forked_code.py"]
        assert "it has 2 threads" in fork.lost[0]


async def test_another_hash_seed_is_refused(tmp_path: Path) -> None:
    """It is fixed when an interpreter starts, and decides in which order prompts come."""
    async with forking(tmp_path, PYTHONHASHSEED="0") as fork:
        process = fork.start(SAY, env={"PYTHONHASHSEED": "1"})
        assert await process.wait() == 0 and not forked(process)
        assert "PYTHONHASHSEED is '0' here, and must be '1'" in fork.lost[0]


async def test_an_actor_before_its_server_is_ready_is_spawned(tmp_path: Path) -> None:
    async with forking(tmp_path) as fork:
        fork.server._usable = False  # as it is before
        process = fork.start(SAY)
        assert await process.wait() == 0 and not forked(process) and not fork.lost


async def test_only_the_main_thread_starts_actors(fork: Forking) -> None:
    with pytest.raises(RuntimeError, match="main thread"):
        await trio.to_thread.run_sync(fork.start, "")


async def test_no_more_processes(tmp_path: Path) -> None:
    """A server that may not fork says so; nothing of the attempt is left."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))"
    if not os.getuid():
        limit += "\nimport os\ndef no(): raise OSError(11, 'no more')\nos.fork = no"
    async with forking(tmp_path, limit) as fork:
        process = fork.start(SAY)
        assert await process.wait() == 0 and not forked(process)
        assert "does not fork: it cannot fork: [Errno 11]" in fork.lost[0]


@pytest.mark.parametrize("more", [0, 1, 2])
async def test_no_more_files(tmp_path: Path, more: int) -> None:
    """A server that may open no more files, or too few, says so, and is not said to be killed."""
    limit = (
        "import os, resource, socket\n"
        "own = socket.recv_fds\n"
        "def once_ready(*args):\n"
        "    os.close(free := os.dup(0))\n"
        f"    resource.setrlimit(resource.RLIMIT_NOFILE, (free + {more}, free + {more}))\n"
        "    return own(*args)\n"
        "socket.recv_fds = once_ready"
    )
    async with forking(tmp_path, limit) as fork:
        process = fork.start(SAY)
        assert await process.wait() == 0 and not forked(process)
        assert re.search("does not fork: it (may open|cannot fork)", fork.lost[0]), fork.lost


# -------------------------------------------------------------------------- deaths, in every order


DYING = """
import os, signal, socket, time
own_fork, own_waitpid, own_recv = os.fork, os.waitpid, socket.recv_fds
server, forks = os.getpid(), 0

def die():
    os.kill(server, signal.SIGKILL)

def fork():
    global forks
    forks += os.getpid() == server
    if forks < 2:
        return own_fork()
    if os.getpid() != server:  # the middle process
        time.sleep(0.5)
        return own_fork()
    if {at!r} == "before the fork":
        die()
    pid = own_fork()
    if pid and {at!r} == "beside the middle process":
        die()
    if pid and {at!r} == "behind the middle process":
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        die()
    return pid

def waitpid(*args):
    ended = own_waitpid(*args)
    if forks == 2 and {at!r} == "before the answer":
        die()
    return ended

def recv_fds(*args):
    if forks == 2:
        die()
    return own_recv(*args)

os.fork, os.waitpid, socket.recv_fds = fork, waitpid, recv_fds
"""
SERVERS, SPAWNED = "code_server.py", "forked_code.py"


MOMENTS = [
    "beside the middle process",
    "before the fork",
    "before the answer",
    "behind the middle process",
    "behind the answer",
]


@pytest.mark.parametrize("at", some(MOMENTS))
async def test_wherever_the_server_is_killed_each_actor_runs_once(tmp_path: Path, at: str) -> None:
    """At each moment of the second start the actor is forked or spawned, and its code has run once.
    No zombie is left, and nobody of the server's session."""
    before = children()
    async with forking(tmp_path, DYING.format(at=at)) as fork:
        for number in range(3):
            process = fork.start(SAY)
            assert await process.wait() == 0
            text = process.log.read_text()
            assert text.count("\n") == number + 1
    second = SERVERS if at == "behind the answer" else SPAWNED
    assert [Path(line).name for line in text.splitlines()] == [SERVERS, second, SPAWNED]
    assert children() <= before


LAUNCHER = """
import sys, trio
from pathlib import Path
from asyncrl.runtime.processes.process import become_child
from process_support import BECOME, FOREVER, forking

become_child()

async def main():
    async with forking(Path({folder!r})) as fork:
        print(fork.server._process.pid, flush=True)
        while True:
            print(fork.start(BECOME + FOREVER).pid, flush=True)
            await trio.sleep(0)

trio.run(main)
"""


@pytest.mark.parametrize("victims", some(["launcher, server", "launcher", "server, launcher"]))
async def test_with_the_launcher_everybody_dies_at_any_moment(tmp_path: Path, victims: str) -> None:
    """The launcher starts one actor after the other, and is killed amid that; before it or behind
    it the server is, too. The actors that nobody has heard of yet end as well."""
    draw, marker = random.Random(victims), f"forking-{os.getpid()}-{victims}"
    support = str(Path(process_support.__file__).parent)
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), support])
    for round in range(4):
        folder = tmp_path / str(round)
        folder.mkdir()
        launcher = spawn(
            "launcher",
            [sys.executable, "-c", LAUNCHER.format(folder=str(folder))],
            log=tmp_path / f"launcher-{round}",
            env={"PYTHONPATH": path, "MARKER": f"{marker}-{round}"},
        )
        first = await said(launcher, 2)
        await trio.sleep(draw.uniform(0.0, 0.1))
        for victim in victims.split(", "):
            os.kill(launcher.pid if victim == "launcher" else int(first[0]), signal.SIGKILL)
        assert await launcher.wait() == -9
        known = [int(line) for line in launcher.log.read_text().split()]
        for pid in known:
            await gone(pid)
        with trio.fail_after(30):
            while marked(f"{marker}-{round}"):  # those that it had not heard of yet
                await trio.lowlevel.checkpoint()


def marked(marker: str) -> list[int]:
    """The living processes that inherited this variable, or had it when they were forked."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and lives(int(entry.name)):
            try:
                if marker.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


async def test_a_killed_actor_is_known_at_once_and_the_server_goes_on(fork: Forking) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        process = fork.start(BECOME + FOREVER)
        process.signal(number)
        assert await process.wait() == -number, "killed before, while or after it began"
    assert not fork.lost


async def test_an_actor_is_killed_before_it_has_begun(fork: Forking) -> None:
    """It may not lead its session yet, and has no group by its number."""
    for _ in range(10):
        assert await fork.start(BECOME + FOREVER).kill_group() == -9


async def test_the_end_of_the_block_is_the_end_of_the_server_alone(tmp_path: Path) -> None:
    async with forking(tmp_path) as fork:
        process, server = fork.start(SAY + FOREVER), fork.server._process.pid
        await said(process, 1)
    assert not lives(server) and lives(process.pid) and not fork.lost
    assert await process.kill_group() == -9
