"""A real SGLang server on this machine's processor, over the bundled model with random weights of
`SEED`. It asks for a key, by docker/keyed_server.py."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import forked_server
import httpx2

from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.runtime.processes.machine import free_port

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
LAUNCH = (str(PYTHON), forked_server.__file__)
"""The same server, which starts in a third of the time."""
MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
"""Modules of a server and its schedulers that take a second of a core or more to import."""
SEED = 11
START_S = 300.0


class Server(NamedTuple):
    """A running server: its address, the key that it asks for, the model directory it was started
    with, its log and its process group."""

    url: str
    key: str
    model: Path
    log: Path
    group: int

    def client(self, **more: Any) -> AbstractAsyncContextManager[SglangClient]:
        """A client of it that has the key."""
        return SglangClient.open(self.url, api_key=self.key, **more)


async def slow(client: SglangClient, seconds: float | None) -> None:
    """Have each forward pass take so much longer, so that there is time to do something beside
    it."""
    await client._connection.tell("/slow_down", {"forward_sleep_time": seconds})


@contextmanager
def running(model: Path, log: Path, *more: str) -> Iterator[Server]:
    """A server from its start until the end of its process group. Its daemons keep what they
    inherit as standard output: a file."""
    port, key, key_file = free_port(), secrets.token_hex(16), log.with_name("key")
    key_file.write_text(key + "\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")
    } | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_PLATFORM": "cpu_native",
        "TRITON_INTERPRET": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|0",  # a core for each of two ranks at most
    }
    command = [
        PYTHON,
        ROOT / "docker" / "keyed_server.py",
        key_file,
        "--model-path",
        model,
        "--device",
        "cpu",
        "--host",
        "127.0.0.1",
        "--port",
        port,
    ]
    command += [
        "--attention-backend",
        "torch_native",
        "--dtype",
        "float32",
        "--mem-fraction-static",
        "0.5",
        "--max-total-tokens",
        "65536",
    ]
    command += [
        "--skip-tokenizer-init",
        "--sleep-on-idle",
        "--enable-metrics",
        "--random-seed",
        "1",
        *more,
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", key, model, log, process.pid)
    try:
        _wait(server, process)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    with httpx2.Client(trust_env=False, timeout=5.0) as http:
        while time.monotonic() < end:
            if process.poll() is not None:
                raise RuntimeError(
                    f"the server ended with {process.returncode}:\n{server.log.read_text()[-4000:]}"
                )
            try:
                if http.get(f"{server.url}/ready").status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
    raise RuntimeError(
        f"the server was not ready within {START_S:g} s:\n{server.log.read_text()[-4000:]}"
    )
