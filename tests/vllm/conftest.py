"""A real vLLM server that all tests share, as a start takes half a minute; without `.venv-vllm`
they skip, and say so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from real_vllm import MODULES, PYTHON, START_S, SharedServer, launch, started
from warm_process import launch_of

from asyncrl.bundled.bundled_model import new_model, write_tokenizer
from asyncrl.engines.servers.errors import ServerError
from asyncrl.engines.vllm.vllm_client import VllmClient
from asyncrl.engines.vllm.vllm_launch import environment

SEED = 11


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a server waits for its start, and is for CI."""
    for item in items:
        if isinstance(item, pytest.Function) and "vllm_shared" in item.fixturenames:
            item.add_marker(pytest.mark.explore)
            item.add_marker(pytest.mark.processes)
            item.add_marker(pytest.mark.slow)
            if not any(item.iter_markers("timeout")):
                item.add_marker(pytest.mark.timeout(START_S + 120))


@pytest.fixture
def vllm_python() -> Path:
    if not PYTHON.exists():
        pytest.skip("there is no environment for vLLM here; `make vllm-cpu` builds .venv-vllm")
    return PYTHON


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model's directory, with random weights of `SEED`."""
    directory = tmp_path_factory.mktemp("vllm_model")
    new_model(SEED).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="session")
def vllm_launch(vllm_model: Path) -> Iterator[tuple[str, ...]]:
    """`engine.vllm.launch` of runs: the same server, without its imports."""
    if not PYTHON.exists():
        pytest.skip("there is no environment for vLLM here; `make vllm-cpu` builds .venv-vllm")
    with launch_of(str(PYTHON), MODULES, environment(launch(vllm_model))) as forked:
        yield forked


@pytest.fixture(scope="session")
def vllm_shared(
    vllm_model: Path, vllm_launch: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedServer]:
    """The server that all tests share. Tests leave it ready and empty."""
    log = tmp_path_factory.mktemp("vllm_log") / "server.log"
    with started(vllm_model, log, vllm_launch) as server:
        yield server


@pytest.fixture
async def vllm(vllm_shared: SharedServer) -> AsyncIterator[VllmClient]:
    """A client of it; whatever a test leaves is ended and resumed."""
    async with VllmClient.open(vllm_shared.url, socket=vllm_shared.socket) as client:
        yield client
        with trio.CancelScope(shield=True), suppress(ServerError):
            await client.abort_all()
            await client.resume()
