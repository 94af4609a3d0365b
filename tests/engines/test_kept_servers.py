"""Servers that outlive their actor: who takes them over, when they end, and that nothing of them is
left. The servers are processes that sleep; their actors are tasks of this test, or processes that
are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from asyncrl.engines.servers.errors import ServerGone
from asyncrl.engines.servers.kept_servers import RECORD, ServerAddress, servers_ended
from asyncrl.engines.servers.server_process import (
    Keeping,
    ServerProcess,
    ServerStart,
    likeness,
    server_process,
)
from asyncrl.runtime.run_dir import SERVERS

pytestmark = pytest.mark.processes
SLEEPS = "import time; time.sleep(1000)"
HANGS = SLEEPS + "  # and is never ready"
LONG_S = 300.0
ENDS_S = 30.0
"""Seconds that an end may take on a busy machine."""


def start(
    run: Path, *, alike: str = "a", gpus: str = "", name: str = "server-0", code: str = SLEEPS
) -> ServerStart:
    """The start of a server that is ready at once."""

    def begin(files: Path) -> tuple[list[str], ServerAddress]:
        return [sys.executable, "-c", code], ServerAddress(f"http://{name}")

    async def ready(server: ServerProcess) -> None:
        await trio.lowlevel.checkpoint()
        if code == HANGS:
            print(server.process.pid, flush=True)
            await trio.sleep_forever()

    environment = {"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}
    return ServerStart(name, run / "log", None, environment, [alike], begin, ready, ready)


def keeping(run: Path, seconds: float = LONG_S, takes_over: bool = True) -> Keeping:
    return Keeping(run / SERVERS, seconds, takes_over)


ACTOR = """
import sys
from pathlib import Path
import trio
sys.path.insert(0, sys.argv[1])
from test_kept_servers import keeping, start
from asyncrl.engines.servers.server_process import server_process

async def main():
    run, seconds, more = Path(sys.argv[2]), float(sys.argv[3]), eval(sys.argv[4])
    async with server_process(start(run, **more), keeping(run, seconds)) as server:
        print(server.process.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@contextmanager
def actor(run: Path, seconds: float = LONG_S, **more: str) -> Iterator[tuple[Any, int]]:
    """A process with a server, and the process id of the server's guard."""
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", ACTOR, here, str(run), str(seconds), repr(more)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def left_by_a_killed_actor(run: Path, seconds: float = LONG_S, **more: str) -> int:
    """The guard of a server whose actor was killed."""
    with actor(run, seconds, **more) as (_, guard):
        return guard


async def end_of(guard: int) -> None:
    """Wait until this process is dead, whoever reaps it."""
    try:
        ended = os.pidfd_open(guard)
    except ProcessLookupError:
        return
    try:
        with trio.fail_after(ENDS_S):
            await trio.lowlevel.wait_readable(ended)
    finally:
        os.close(ended)


async def command_of(guard: int) -> int:
    """The process that it guards, once that is there."""
    children = trio.Path(f"/proc/{guard}/task/{guard}/children")
    with trio.fail_after(ENDS_S):
        while not (found := (await children.read_text()).split()):  # noqa: ASYNC110
            await trio.sleep(0.02)
    return int(found[0])


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kept(run: Path) -> list[Path]:
    """The folders of servers that are known to the run."""
    return [link.readlink() for link in (run / SERVERS).glob("*")]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Path]:
    """A run's directory, of which no server is left."""
    async with servers_ended(tmp_path):
        yield tmp_path


async def test_the_next_actor_has_the_server_of_one_that_was_killed(run: Path) -> None:
    guard = left_by_a_killed_actor(run)
    (files,) = kept(run)
    async with server_process(start(run), keeping(run)) as server:
        assert server.process.pid == guard and server.url == "http://server-0"
    assert lives(guard), "an actor may end because another one is lost"
    async with servers_ended(run):
        pass
    assert not lives(guard) and not files.exists()


@pytest.mark.explore
async def test_and_the_one_after_that(run: Path) -> None:
    guard = left_by_a_killed_actor(run)
    for _ in range(3):
        assert left_by_a_killed_actor(run) == guard
    assert lives(guard)


async def test_its_end_is_noticed_by_who_took_it_over_with_its_status(run: Path) -> None:
    guard = left_by_a_killed_actor(run)
    with pytest.raises(ServerGone, match="was ended by SIGSEGV"):
        async with server_process(start(run), keeping(run)) as server:
            os.kill(await command_of(guard), signal.SIGSEGV)
            await server.watch()
    assert not kept(run) or not kept(run)[0].exists()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.explore)]
)
async def test_a_server_that_dies_while_nobody_owns_it_is_not_taken_over(
    run: Path, number: signal.Signals
) -> None:
    guard = left_by_a_killed_actor(run)
    os.kill(await command_of(guard), number)
    await end_of(guard)
    async with server_process(start(run), keeping(run)) as server:
        assert server.process.pid != guard


@pytest.mark.explore
async def test_another_kind_of_server_is_not_taken_over_and_one_in_the_way_is_ended(
    run: Path,
) -> None:
    """A new one ends those with its name or one of its GPUs, and no other."""
    named = left_by_a_killed_actor(run, alike="b", gpus="6")
    sharing = left_by_a_killed_actor(run, alike="c", gpus="0,1", name="server-1")
    apart = left_by_a_killed_actor(run, alike="d", gpus="2,3", name="server-2")
    none = left_by_a_killed_actor(run, alike="e", name="server-3")
    async with server_process(start(run, gpus="1,4"), keeping(run)) as server:
        assert server.process.pid not in (named, sharing, apart, none)
        assert not lives(named) and not lives(sharing)
        assert lives(apart) and lives(none)
    async with servers_ended(run):
        pass
    assert not lives(apart) and not lives(none) and lives(os.getpid())


def test_a_server_is_alike_where_command_and_environment_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = likeness(["python", "-m", "s"], {"A": "1"})
    assert found == likeness(["python", "-m", "s"], {"A": "1"})
    others = [likeness(["python", "-m", "t"], {"A": "1"}), likeness(["python", "-m", "s"], {})]
    others.append(likeness(["python", "-m", "s", "A=1"], {}))
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert found == likeness(["python", "-m", "s"], {"A": "1"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    others.append(likeness(["python", "-m", "s"], {"A": "1"}))
    assert found not in others and len(set(others)) == 4
    assert likeness(["s"], {"CUDA_VISIBLE_DEVICES": "1"}) != likeness(["s"], {})


@pytest.mark.explore
async def test_of_two_actors_one_has_it(run: Path) -> None:
    guard = left_by_a_killed_actor(run)
    async with server_process(start(run), keeping(run)) as first:
        other = start(run, name="server-1")
        async with server_process(other, keeping(run)) as second:
            assert first.process.pid == guard != second.process.pid
        async with servers_ended(run):
            pass
        assert lives(guard), "it is somebody's"


@pytest.mark.explore
async def test_each_has_its_own_where_it_can_and_another_one_is_its_own_from_then_on(
    run: Path,
) -> None:
    first, second = left_by_a_killed_actor(run), left_by_a_killed_actor(run, name="server-1")
    assert first == second, "there was one, and the second actor took it"
    async with server_process(start(run), keeping(run)) as server:
        assert server.process.pid == first
        assert left_by_a_killed_actor(run, name="server-1") != first
    async with server_process(start(run, name="server-1"), keeping(run)) as server:
        assert server.process.pid != first
    async with server_process(start(run), keeping(run, takes_over=False)):
        assert not lives(first), "it had its name, and was in its way"


async def test_an_actor_that_was_started_again_begins_with_a_new_one(run: Path) -> None:
    guard = left_by_a_killed_actor(run)
    async with server_process(start(run), keeping(run, takes_over=False)) as server:
        assert server.process.pid != guard and not lives(guard)


@pytest.mark.parametrize("seconds", [0.0, 0.5])
async def test_one_that_nobody_takes_over_ends_in_time(run: Path, seconds: float) -> None:
    began = trio.current_time()
    guard = left_by_a_killed_actor(run, seconds)
    await end_of(guard)
    assert trio.current_time() - began >= seconds
    assert all(not files.exists() for files in kept(run))


async def test_an_error_of_the_actors_leaves_the_server_to_the_next_and_one_of_the_servers_ends_it(
    run: Path,
) -> None:
    with pytest.raises(ConnectionError):
        async with server_process(start(run), keeping(run)) as server:
            guard = server.process.pid
            raise ConnectionError("the coordinator is gone")
    assert lives(guard)
    with pytest.RaisesGroup(ServerGone):
        async with server_process(start(run), keeping(run)) as server:
            assert server.process.pid == guard
            raise ExceptionGroup("", [ServerGone("it said nothing")])
    assert not lives(guard)
    with pytest.raises(ConnectionError):
        async with server_process(start(run), keeping(run, 0.0)) as server:
            guard = server.process.pid
            raise ConnectionError("the coordinator is gone")
    assert not lives(guard), "it is not to be kept"
    async with server_process(start(run), None) as server:
        guard = server.process.pid
    assert not lives(guard), "nor is this one"


@pytest.mark.explore
async def test_one_that_heeds_no_sigterm_leaves_no_files_either(run: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); "
    guard = left_by_a_killed_actor(run, code=deaf + SLEEPS)
    (files,) = kept(run)
    with trio.fail_after(ENDS_S):
        while "1" not in (run / "log").read_text():  # noqa: ASYNC110 (of another process)
            await trio.sleep(0.02)
    async with servers_ended(run):
        pass
    assert not lives(guard) and not files.exists() and not kept(run)


async def test_one_that_does_not_answer_is_ended_and_a_new_one_started(run: Path) -> None:
    guard = left_by_a_killed_actor(run)

    async def silent(server: ServerProcess) -> None:
        raise ServerGone("it did not answer within 30 s")

    wanted = msgspec.structs.replace(start(run), answers=silent)
    async with server_process(wanted, keeping(run)) as server:
        assert server.process.pid != guard and not lives(guard)


async def test_one_whose_start_was_cut_off_is_not_kept(run: Path) -> None:
    """It was not ready: whoever took it over would wait for what may never be."""
    guard = left_by_a_killed_actor(run, code=HANGS)
    await end_of(guard)
    assert not kept(run)


async def test_what_is_somebody_elses_by_now_is_not_asked(run: Path, tmp_path: Path) -> None:
    """A folder of servers names paths under the system's folder of temporary files, and anybody
    may make one there after the machine was started again."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    record = start(run).record(ServerAddress("http://evil"))
    (theirs / RECORD).write_bytes(msgspec.json.encode(record))
    (run / SERVERS).mkdir()
    (run / SERVERS / "x").symlink_to(theirs)
    (run / SERVERS / "gone").symlink_to(tmp_path / "gone")
    async with server_process(start(run), keeping(run)) as server:
        assert server.url != "http://evil"
        (files,) = kept(run)
        assert files != theirs
