"""A real SGLang server on this machine's processor, over the bundled model with random weights of
`SEED`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2

from asyncrl.processes.machine import free_port

PYTHON = Path(__file__).parents[2] / ".venv-sglang" / "bin" / "python"
SEED = 11
START_S = 300.0


class Server(NamedTuple):
    """A running server: its address, the model directory it was started with, its log and its
    process group."""

    url: str
    model: Path
    log: Path
    group: int


@contextmanager
def running(
    model: Path,
    log: Path,
    *more: str,
    program: tuple[str | Path, ...] = ("-m", "sglang.launch_server"),
) -> Iterator[Server]:
    """A server from its start until the end of its process group. Its daemons keep what they
    inherit as standard output: a file."""
    port = free_port()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")
    } | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_PLATFORM": "cpu_native",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|0",  # a core for each of two ranks at most
    }
    command = [
        PYTHON,
        *program,
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
    server = Server(f"http://127.0.0.1:{port}", model, log, process.pid)
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
