"""A real SGLang server on this machine's processor, over the bundled model with random weights. One for the whole test run: it takes half a
minute to start. Tests leave it as they found it: ready, empty, and with the weights it was started with or others of the same shape."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from asyncrl.machine import free_port
from asyncrl.training.bundled import new_model, write_tokenizer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
SEED = 11
START_S = 300.0


class Server(NamedTuple):
    """A running server: its address, the model directory it was started with, its log and its process group."""

    url: str
    model: Path
    log: Path
    group: int


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a server waits for its start."""
    for item in items:
        if isinstance(item, pytest.Function) and {"sglang_server", "sglang_start"} & set(item.fixturenames):
            item.add_marker(pytest.mark.processes)
            if not any(item.iter_markers("timeout")):
                item.add_marker(pytest.mark.timeout(START_S + 120))


@pytest.fixture(scope="session")
def sglang_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model's directory, with random weights of `SEED`."""
    directory = tmp_path_factory.mktemp("sglang_model")
    new_model(SEED).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@contextmanager
def running(model: Path, log: Path, *more: str) -> Iterator[Server]:
    """A server from its start until the end of its process group. Its daemons keep what they inherit as standard output: a file."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")} | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_PLATFORM": "cpu_native",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|0",  # a core for each of two ranks at most
    }
    command = [PYTHON, "-m", "sglang.launch_server", "--model-path", model, "--device", "cpu", "--host", "127.0.0.1", "--port", port]
    command += ["--attention-backend", "torch_native", "--dtype", "float32", "--mem-fraction-static", "0.5", "--max-total-tokens", "65536"]
    command += ["--skip-tokenizer-init", "--sleep-on-idle", "--enable-metrics", "--random-seed", "1", *more]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command], env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
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
                raise RuntimeError(f"the server ended with {process.returncode}:\n{server.log.read_text()[-4000:]}")
            try:
                if http.get(f"{server.url}/ready").status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
    raise RuntimeError(f"the server was not ready within {START_S:g} s:\n{server.log.read_text()[-4000:]}")


@pytest.fixture(scope="module")
def sglang_start(sglang_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts a server of one's own with more arguments, for tests that end it. It lives as long as the module: others want its cores."""
    if not PYTHON.exists():
        pytest.skip("there is no environment for SGLang here; `make sglang-cpu` builds .venv-sglang")
    with ExitStack() as stack:

        def start(*more: str) -> Server:
            return stack.enter_context(running(sglang_model, tmp_path_factory.mktemp("sglang_log") / "server.log", *more))

        yield start


@pytest.fixture(scope="module")
def sglang_server(sglang_start: Callable[..., Server]) -> Server:
    """The one that a module's tests share."""
    return sglang_start()
