"""A real vLLM server on this machine's processor, started as a run starts it, but forked, and kept
by a process of its own event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2

from asyncrl.engines.servers.server_process import ServerLaunch
from asyncrl.engines.vllm.vllm_launch import URL, address, command, environment
from asyncrl.own_folder import own_folder

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
MODULES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
"""Modules of a server and its engine that take a second of a core or more to import."""
START_S = 300.0
SLOTS, CONTEXT = 4, 512


class SharedServer(NamedTuple):
    """A running server: its address and socket, its log and its process group."""

    url: str
    socket: str
    log: Path
    group: int


def launch(
    model: Path, *arguments: str, slots: int = SLOTS, python: tuple[str, ...] = (str(PYTHON),)
) -> ServerLaunch:
    return ServerLaunch(python, str(model), "float32", "cpu", slots, CONTEXT, arguments=arguments)


@contextmanager
def started(model: Path, log: Path, python: tuple[str, ...]) -> Iterator[SharedServer]:
    """A server from its start until the end of its process group."""
    held = ExitStack()
    folder = held.enter_context(own_folder("test"))
    at, what = address(folder), launch(model, python=python)
    socket = Path(at.socket)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(what, at, Path()),
            env={**os.environ, **environment(what), "TMPDIR": str(folder)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(socket, log, process)
        yield SharedServer(URL, str(socket), log, process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        held.close()


def _wait(socket: Path, log: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket)), timeout=5.0) as http:
        while time.monotonic() < end:
            if process.poll() is not None:
                raise RuntimeError(
                    f"the server ended with {process.returncode}:\n{log.read_text()[-4000:]}"
                )
            try:
                if http.get(f"{URL}/health").status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
    raise RuntimeError(f"the server was not ready:\n{log.read_text()[-4000:]}")
