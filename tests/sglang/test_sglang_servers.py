"""A server as a child: its command, its start, and that nothing of it is left, however it or who
started it ends. Most of it with programs that stand in for a server, the ends with the real one. Of
the hazards of the protocol 14 is here."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np
import pytest
import trio
from real_sglang import LAUNCH, PYTHON
from some_values import some

from asyncrl.bundled.bundled_model import END_ID, VOCABULARY, new_model
from asyncrl.engines import canary
from asyncrl.engines.servers.errors import RequestRefused, ServerGone
from asyncrl.engines.servers.kept_servers import ServerAddress
from asyncrl.engines.servers.managed import NOWHERE
from asyncrl.engines.servers.server_process import AdapterRoom, ServerLaunch
from asyncrl.engines.sglang import sglang_client as client_module
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.engines.sglang.sglang_launch import command, environment, managed
from asyncrl.weightsync.servers.by_broadcast import ByBroadcast
from asyncrl.weightsync.servers.server_group import ServerGroup
from asyncrl.weightsync.servers.weight_loader import WeightLoader

START_S = 240.0


def launch(*python: str, model: str = "/model", **settings: object) -> ServerLaunch:
    return ServerLaunch(python, model, "float32", "cpu", 8, 128, **settings)  # type: ignore[arg-type]


def script(code: str) -> tuple[str, ...]:
    """A stand-in for a Python with SGLang: it does this, whatever it is asked to run."""
    return sys.executable, "-c", "import os, signal, subprocess, sys, time\n" + code


# -------------------------------------------------------------------------------- the command line


def test_the_command_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    python = "docker", "run", "--rm", "image", "python3"
    cuda = ServerLaunch(
        python,
        "/m",
        "bfloat16",
        "cuda",
        128,
        4096,
        tensor_parallel=4,
        seed=7,
        arguments=("--mem-fraction-static", "0.8"),
    )
    key_file = Path("/run/logs/server-0-key.yaml")
    words = command(cuda, ServerAddress("http://127.0.0.1:1234"), key_file)
    assert words[:7] == [*python, "-m", "sglang.launch_server"]
    pairs = dict(pairwise(words))
    expected = {
        "config": str(key_file),
        "model-path": "/m",
        "host": "127.0.0.1",
        "port": "1234",
        "device": "cuda",
        "dtype": "bfloat16",
        "tp-size": "4",
    }
    expected |= {"max-running-requests": "129", "context-length": "4104", "random-seed": "7"}
    assert all(pairs[f"--{name}"] == value for name, value in expected.items())
    assert "--skip-tokenizer-init" in words and "--attention-backend" not in words
    routing = command(msgspec.structs.replace(cuda, routing=True), NOWHERE, key_file)
    assert set(routing) - set(words) >= {"--enable-return-routed-experts"}
    room = AdapterRoom(16, ("k_proj", "q_proj"), 9)
    adapted = command(msgspec.structs.replace(cuda, adapters=room), NOWHERE, key_file)
    pairs = dict(pairwise(adapted))
    assert (pairs["--max-lora-rank"], pairs["--max-loras-per-batch"]) == ("16", "9")
    at = adapted.index("--lora-target-modules")
    assert adapted[at - 1 : at + 4] == [
        *("--enable-lora", "--lora-target-modules", "k_proj", "q_proj", "--mem-fraction-static")
    ]
    assert "--lora-backend" not in adapted, "SGLang's own choice on a GPU"
    assert words[-2:] == ["--mem-fraction-static", "0.8"], (
        "what the user adds comes last, where it wins"
    )
    assert (
        not {"SGLANG_PLATFORM", "OMP_NUM_THREADS", "SGLANG_CPU_OMP_THREADS_BIND"}
        & environment(cuda, [0]).keys()
    )

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    two = msgspec.structs.replace(cuda, gpus=(1, 2))
    assert environment(two, [0])["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert "CUDA_VISIBLE_DEVICES" not in environment(cuda, [0])

    cpu = launch("/python")
    pairs = dict(pairwise(command(cpu, NOWHERE, key_file)))
    assert (
        pairs["--attention-backend"] == "torch_native"
        and int(pairs["--max-total-tokens"]) >= 9 * 136
    )
    found = environment(cpu, [3, 5])
    assert (
        found["SGLANG_PLATFORM"],
        found["OMP_NUM_THREADS"],
        found["SGLANG_CPU_OMP_THREADS_BIND"],
    ) == ("cpu_native", "1", "3")
    assert (
        environment(msgspec.structs.replace(cpu, tensor_parallel=3), [3, 5])[
            "SGLANG_CPU_OMP_THREADS_BIND"
        ]
        == "3|5|3"
    )


# ---------------------------------------------------------------------------- what is not a server


@pytest.mark.processes
async def test_a_server_that_ends_at_once_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with (
        trio.fail_after(90),
        pytest.raises(ServerGone, match=r"(?s)ended with status 3; .*log:\nno such model"),
    ):
        async with managed(
            launch(*script("print('no such model'); sys.exit(3)")), log=tmp_path / "log"
        ):
            raise AssertionError("it is not ready")


@pytest.mark.processes
async def test_a_command_that_is_none(tmp_path: Path) -> None:
    with (
        trio.fail_after(90),
        pytest.raises(
            ServerGone, match=r"(?s)status 1; .*/nowhere/python cannot be started: No such file"
        ),
    ):
        async with managed(launch("/nowhere/python"), log=tmp_path / "log"):
            raise AssertionError("it is not ready")


@pytest.mark.explore
@pytest.mark.processes
async def test_a_server_that_is_never_ready_ends_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "p = subprocess.Popen(['sleep', '1000'], start_new_session=False); print(p.pid, "
        "flush=True); signal.pause()"
    )
    with (
        trio.fail_after(90),
        pytest.raises(ServerGone, match=r"(?s)not ready within 15 s.*log\n\d+"),
    ):
        async with managed(launch(*script(code)), log=tmp_path / "log", ready_s=15):
            raise AssertionError("it is not ready")
    assert not lives(int((tmp_path / "log").read_text()))


@pytest.mark.processes
async def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                async with managed(
                    launch(*script("print(os.getpid(), flush=True); signal.pause()")), log=log
                ):
                    raise AssertionError("it is not ready")

            nursery.start_soon(start)
            while (
                not log.exists() or not log.read_text().strip()
            ):  # bounded by real time, because a real process writes it
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert not lives(int(log.read_text()))


@pytest.mark.processes
async def test_a_server_that_a_signal_ends_is_told_by_its_name(tmp_path: Path) -> None:
    with trio.fail_after(90), pytest.raises(ServerGone, match=r"(?s)was ended by SIGUSR1; "):
        async with managed(
            launch(*script("os.kill(os.getpid(), signal.SIGUSR1); time.sleep(100)")),
            log=tmp_path / "log",
        ):
            raise AssertionError("it is not ready")


ASKS_FOR_A_KEY = """
import http.server, json, pathlib, stat
words = sys.argv
key_file = pathlib.Path(words[words.index('--config') + 1])
key = json.loads(key_file.read_text())['api-key']
shown = pathlib.Path('/proc/self/cmdline').read_text()
environment = pathlib.Path('/proc/self/environ').read_text()
mode = stat.S_IMODE(key_file.stat().st_mode)
print(json.dumps([len(key), mode, key in shown, key in environment]), flush=True)
class Asks(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers['authorization'] == f'Bearer {key}'
        self.send_response(200 if known or self.path == '/ready' else 401)
        self.send_header('content-length', '43')
        self.end_headers()
        self.wfile.write(b'{"model_path": "/m", "weight_version": "0"}')
    def log_message(self, *_):
        pass
port = int(words[words.index('--port') + 1])
http.server.HTTPServer(('127.0.0.1', port), Asks).serve_forever()
"""


@pytest.mark.processes
async def test_a_server_gets_a_key_that_no_command_line_shows(tmp_path: Path) -> None:
    """Every user of a machine reaches its loopback, and reads its command lines. Each server has a
    key of its own."""
    keys = set()
    for name in ("server-0", "server-1"):
        log = tmp_path / f"{name}.log"
        stands_in = launch(*script(ASKS_FOR_A_KEY))
        with trio.fail_after(300):
            async with managed(stands_in, log=log, name=name, ready_s=240) as server:
                async with SglangClient.open(server.url, api_key=server.key) as client:
                    assert (await client.model_info()).model_path == "/m"
                async with SglangClient.open(server.url) as stranger:
                    with pytest.raises(RequestRefused, match="401"):
                        await stranger.model_info()
                assert json.loads(log.read_text()) == [64, 0o600, False, False]
                assert not await trio.Path(tmp_path / f"{name}-key.yaml").exists(), "it is kept"
                keys.add(server.key)
    assert len(keys) == 2


STARTING = """
deaf = 'import signal; signal.signal(15, signal.SIG_IGN); signal.pause()'
child = subprocess.Popen([sys.executable, '-c', deaf])
def heard(*_):
    print('asked to end', flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, heard)
import tempfile
tempfile.NamedTemporaryFile(delete=False)
print(child.pid, os.getpid(), tempfile.gettempdir(), flush=True)
time.sleep(1000)
"""


@pytest.mark.processes
@pytest.mark.parametrize("deaf", some([True, False]))
@pytest.mark.timeout(180)
def test_an_actor_that_is_killed_as_its_server_starts_leaves_nothing(
    tmp_path: Path, deaf: bool
) -> None:
    """The server's child has not asked for a signal yet. The server is asked to end, and where
    it does not it is killed."""
    log, code = tmp_path / "log", STARTING.replace("sys.exit()", "pass") if deaf else STARTING
    wanted = msgspec.json.encode(launch(*script(code))).decode()
    with subprocess.Popen([sys.executable, "-c", ACTOR, wanted, log, "60"]) as actor:
        while not log.exists() or not log.read_text().strip():  # a real process writes it
            time.sleep(0.05)
        *pids, files = log.read_text().split()
        started = [int(pid) for pid in pids]
        assert list(Path(files).iterdir()) and Path(files) != Path(tempfile.gettempdir())
        ends = [os.pidfd_open(pid) for pid in started]
        actor.kill()
    for end in ends:
        assert select.select([end], [], [], 60)[0]
        os.close(end)
    assert not any(lives(pid) for pid in started) and "asked to end" in log.read_text()
    gone = time.monotonic() + 30
    while Path(files).exists():
        assert time.monotonic() < gone
        time.sleep(0.05)


# ----------------------------------------------------------------------------------- a real server


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def session(leader: int) -> list[int]:
    """The living processes of a session."""

    def found() -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and lives(int(entry.name)):
                try:
                    if os.getsid(int(entry.name)) == leader:
                        yield int(entry.name)
                except ProcessLookupError:
                    pass

    return list(found())


def command_of(leader: int) -> int:
    """The server itself, which the leader of its session waits for."""
    (pid,) = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    return int(pid)


@pytest.fixture
def real(sglang_model: Path) -> Callable[..., ServerLaunch]:
    if not PYTHON.exists():
        pytest.skip(
            "there is no environment for SGLang here; `make sglang-cpu` builds .venv-sglang"
        )
    return partial(launch, *LAUNCH, model=str(sglang_model))


@pytest.mark.explore
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(START_S + 120)
async def test_a_server_of_two_ranks_from_its_start_to_its_death(
    real: Callable[..., ServerLaunch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its whole context, both ranks get the same weights, and when it is killed that is
    noticed, and nothing of it is left."""
    monkeypatch.setitem(client_module.WHOLE_DISTRIBUTION, "ignore_eos", True)
    log = tmp_path / "server.log"
    async with (
        managed(real(tensor_parallel=2), log=log, ready_s=START_S) as server,
        SglangClient.open(server.url, api_key=server.key) as client,
    ):
        assert await client.ready()
        assert (await client.server_info()).max_running_requests == 9
        await fills_its_context(client)
        await both_ranks_get_the_same_weights(client)
        mine = session(server.process.pid)
        assert len(mine) >= 4, "the server has two schedulers and a detokenizer of its own"
        os.kill(command_of(server.process.pid), signal.SIGKILL)
        with (
            trio.fail_after(90),
            pytest.raises(ServerGone, match=r"was ended by SIGKILL; the end of its log"),
        ):
            await server.watch()
        assert not any(lives(pid) for pid in mine)
    assert "server is fired up" in log.read_text()


async def fills_its_context(client: SglangClient) -> None:
    """A prompt of any length may be followed by as many tokens as the run's context has left."""
    for known in (1, 64, 127):  # of 128
        asked = client.generate(
            uuid4().hex,
            np.full(known, 65, np.int32),
            max_new_tokens=128 - known,
            temperature=1.0,
        )
        assert sum([len(event.ids) async for event in asked]) == 128 - known


async def both_ranks_get_the_same_weights(client: SglangClient) -> None:
    async with ServerGroup.open("127.0.0.1", 2, bucket_bytes=300_000) as group:
        text, shell = canary.text(VOCABULARY, [END_ID]), new_model(0)
        loader = WeightLoader(
            client,
            ByBroadcast(group, 60.0),
            shell,
            text,
            mode="retract",
            tolerance=1e-3,
            deadline_s=60.0,
        )
        for version in (1, 2):
            weights = {name: one.detach() for name, one in new_model(version).named_parameters()}
            known = canary.reference(shell, weights, text)
            loaded = await loader.load(version, weights, known)
            ranks = await client.checksums()
            assert loaded.exact == len(ranks[0].checksums) and len(ranks) == 2
            assert loaded.difference <= 1e-5


ACTOR = """
import json, sys
from pathlib import Path
import msgspec, trio
from asyncrl.engines.servers.server_process import ServerLaunch
from asyncrl.engines.sglang.sglang_launch import managed

async def main():
    launch = msgspec.json.decode(sys.argv[1], type=ServerLaunch)
    async with managed(launch, log=Path(sys.argv[2]), ready_s=float(sys.argv[3])) as server:
        print(json.dumps({"url": server.url, "pid": server.process.pid}), flush=True)
        await server.watch()

trio.run(main)
"""


@pytest.fixture
def actor(real: Callable[..., ServerLaunch], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that starts a server, says so, and watches it."""
    wanted = msgspec.json.encode(real()).decode()
    process = subprocess.Popen(
        [sys.executable, "-c", ACTOR, wanted, tmp_path / "log", str(START_S)],
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.soak  # test_sglang_machines kills a whole machine, whose server ends with it
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(START_S + 120)
async def test_an_actor_that_is_killed_takes_its_server_with_it(
    actor: subprocess.Popen[str],
) -> None:
    """Hazard 14, too: nothing of the server holds the actor's own output open, so reading it to its
    end does end."""
    assert actor.stdout is not None
    started = json.loads(await trio.to_thread.run_sync(actor.stdout.readline))
    mine = session(started["pid"])
    assert len(mine) >= 3
    with ExitStack() as stack:
        ends = []
        for pid in mine:
            ends.append(os.pidfd_open(pid))
            stack.callback(os.close, ends[-1])
        actor.kill()
        with trio.fail_after(90):
            for end in ends:
                await trio.lowlevel.wait_readable(end)
            assert await trio.to_thread.run_sync(actor.stdout.read, abandon_on_cancel=True) == ""
    assert not any(lives(pid) for pid in mine)
