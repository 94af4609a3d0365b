"""`asyncrl agent` against a launcher that is hostile, of another version, or of another run."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
import warm_process
from closed_port import closed_port
from some_values import some

from asyncrl import messages as m
from asyncrl.config import Config, load, render
from asyncrl.launch.cluster.join_token import JoinToken, certify
from asyncrl.messages.address import TcpAddress
from asyncrl.runtime.ipc.endpoints import serve
from asyncrl.runtime.ipc.keys import new_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.processes.machine import gpus_here
from asyncrl.runtime.run_dir import LOCK, TLS

pytestmark = pytest.mark.processes

PATIENCE_S = 120.0


async def told(
    nursery: trio.Nursery,
    folder: Path,
    launcher: Callable[[Link], Awaitable[None]],
    knows: bytes | None = None,
    more: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """The end of an agent that a launcher like this speaks to; it `knows` the run's key, or this
    one; `more` are its arguments besides."""
    key, (head, agents) = new_key(), certify("127.0.0.1")
    (folder / "head").mkdir()
    head.write(folder / "head")
    tls = Tls.of(folder / "head" / TLS)
    start = partial(serve, TcpAddress("127.0.0.1", 0), key, launcher, refused=print, tls=tls)
    bound = await nursery.start(start)
    token = folder / "join.token"
    JoinToken(str(bound), knows or key, agents).write(token)
    return await ended(token, folder / "agent" / "run", more)


async def ended(
    token: Path, run: Path, more: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """The end of `asyncrl agent`."""
    argv = [sys.executable, "-m", "asyncrl.cli", "agent", "--join", str(token), "--dir", str(run)]
    argv += ["--patience", "1", *more]
    warm_process.warm()  # which the main thread starts
    with trio.fail_after(PATIENCE_S):
        return await trio.to_thread.run_sync(
            partial(warm_process.run, argv, capture_output=True, text=True, timeout=PATIENCE_S)
        )


def saying(*frames: tuple[m.Message, list[bytes]]) -> Callable[[Link], Awaitable[None]]:
    """A launcher that hears who joins, says this, and waits for the agent to hang up."""

    async def launcher(link: Link) -> None:
        assert isinstance((await link.receive())[0], m.Join)
        for message, buffers in frames:
            await link.send(message, *buffers)
        while True:
            await link.receive()

    return launcher


def found(folder: Path, name: str) -> list[Path]:
    return [*folder.rglob(name)]


ADMITTED = m.MachineAdmitted("one", render(Config()), 2, 1, new_key()), list[bytes]()


@pytest.mark.parametrize("name", some(["../../evil", "/tmp/evil", "..", "sub/evil"]))
async def test_a_file_that_leads_elsewhere_is_not_kept(
    nursery: trio.Nursery, tmp_path: Path, name: str
) -> None:
    launcher = saying(ADMITTED, (m.ModelFile("config.json"), [b"{}"]), (m.ModelFile(name), [b"!"]))
    done = await told(nursery, tmp_path, launcher)
    assert done.returncode == 1, done.stderr
    assert (
        f"sent a file that does not belong to a model: {name!r} is not a file name" in done.stderr
    )
    assert "Traceback" not in done.stderr and not found(tmp_path, "evil")


@pytest.mark.parametrize(
    "frames",
    some(
        [
            [(m.StartActor("rollout", 0, 0, False, "tcp:127.0.0.1:9"), [])],
            [(m.ModelFile("config.json"), [b"{}"])],
            [ADMITTED, (m.ModelFile("config.json"), [])],
            [ADMITTED, (m.StartActor("rollout", 0, 0, False, "tcp:127.0.0.1:9"), [])],
            [ADMITTED, ADMITTED],
            [(m.Equipped(), [])],
        ]
    ),
    ids=["start first", "file first", "file of nothing", "start without", "twice", "echo"],
)
async def test_what_is_out_of_turn_ends_this_machines_part(
    nursery: trio.Nursery, tmp_path: Path, frames: list[tuple[m.Message, list[bytes]]]
) -> None:
    done = await told(nursery, tmp_path, saying(*frames))
    assert done.returncode == 1 and "out of turn" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["engine.kind=sglang", 'engine.sglang.launch=["/nowhere/python"]'], "no such program"),
        (["engine.kind=vllm", 'engine.vllm.launch=["/nowhere/python"]'], "no such program"),
        (
            [
                "engine.kind=sglang",
                f'engine.sglang.launch=["{sys.executable}"]',
                "engine.sglang.device=cuda",
            ],
            "it has no GPU that it may use, and a rollout actor needs 1",
        ),
    ],
)
async def test_what_a_machine_lacks_is_told_to_the_launcher_and_it_takes_no_part(
    nursery: trio.Nursery, tmp_path: Path, sets: list[str], said: str
) -> None:
    settings = render(load(None, ["cluster.kind=agents", *sets], {}))
    if "GPU" in said and gpus_here():
        pytest.skip("this machine has GPUs")
    lacks = list[str]()

    async def launcher(link: Link) -> None:
        assert isinstance((await link.receive())[0], m.Join)
        await link.send(m.MachineAdmitted("one", settings, 0, 1, new_key()))
        while not isinstance(message := (await link.receive())[0], m.Unequipped):
            assert isinstance(message, m.Alive)
        lacks.append(message.why)
        await link.send(m.JoinRefused("machine one takes no part"))
        while True:
            await link.receive()

    done = await told(nursery, tmp_path, launcher)
    assert done.returncode == 2 and "machine one takes no part" in done.stderr, done.stderr
    assert said in lacks[0] and "Traceback" not in done.stderr


async def test_a_machine_that_is_to_judge_needs_the_files_of_the_task(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "2 + 2 =", "answer": 4}\n' * 3)
    sets = ["cluster.kind=agents", "cluster.reward_agents=1", "task.name=jsonl"]
    settings = render(load(None, [*sets, f"task.path={lines}", "task.eval_size=1"], {}))
    lacks, refused = list[str](), m.JoinRefused("machine one takes no part")

    async def launcher(link: Link) -> None:
        join, _ = await link.receive()
        assert isinstance(join, m.Join) and join.role == "reward"
        of_task = {str(lines): "12ab"}
        await link.send(m.MachineAdmitted("one", settings, 0, 1, new_key(), of_task))
        while not isinstance(message := (await link.receive())[0], m.Unequipped):
            assert isinstance(message, m.Alive)
        lacks.append(message.why)
        await link.send(refused)
        while True:
            await link.receive()

    done = await told(nursery, tmp_path, launcher, more=["--for", "reward"])
    assert done.returncode == 2 and refused.reason in done.stderr, done.stderr
    assert lacks == [f"{lines} is not what the launcher has; install the same there"]


async def test_who_is_refused_is_told_why_and_ends_with_2(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    reason = "machine one takes no part: it has torch 1.0, and the launcher torch 2.0\x1b[2J"
    done = await told(nursery, tmp_path, saying((m.JoinRefused(reason), [])))
    assert done.returncode == 2 and "it has torch 1.0, and the launcher torch 2.0" in done.stderr
    assert "\x1b" not in done.stderr


async def never(link: Link) -> None:
    raise AssertionError("nobody gets so far")


async def test_who_knows_another_key_is_refused(nursery: trio.Nursery, tmp_path: Path) -> None:
    done = await told(nursery, tmp_path, never, knows=new_key())
    assert done.returncode == 2 and "cannot be joined" in done.stderr, done.stderr


async def test_an_address_that_does_not_answer_is_named(tmp_path: Path) -> None:
    _, agents = certify("127.0.0.1")
    token = tmp_path / "join.token"
    nowhere = f"127.0.0.1:{closed_port()}"
    JoinToken(f"tcp:{nowhere}", new_key(), agents).write(token)
    done = await ended(token, tmp_path / "run")
    assert done.returncode == 2 and f"{nowhere} cannot be joined" in done.stderr, done.stderr


@pytest.mark.explore
async def test_two_agents_cannot_have_one_directory(tmp_path: Path) -> None:
    _, agents = certify("127.0.0.1")
    token, run = tmp_path / "join.token", tmp_path / "run"
    JoinToken(f"tcp:127.0.0.1:{closed_port()}", new_key(), agents).write(token)
    run.mkdir(mode=0o700)
    with (run / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = await ended(token, run)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "another asyncrl is running in this directory; choose another --dir" in done.stderr
    assert not (run / TLS).exists()
    assert "cannot be joined" in (await ended(token, run)).stderr, "the first one is over"
