"""Real servers: one that all tests share, as a start takes half a minute, and more for tests that
need other arguments. Tests leave the shared one as they found it: ready, empty, at full speed, and
with the weights it was started with or others of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from real_sglang import MODULES, PYTHON, SEED, START_S, Server, running
from warm_process import launch_of

from asyncrl.bundled.bundled_model import new_model, write_tokenizer
from asyncrl.engines.servers.server_process import ServerLaunch
from asyncrl.engines.sglang.sglang_launch import environment

USERS = {"sglang_server", "sglang_start", "sglang_last"}


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a server waits for its start, and is for CI."""
    for item in items:
        if isinstance(item, pytest.Function) and USERS & set(item.fixturenames):
            item.add_marker(pytest.mark.explore)
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


@pytest.fixture(scope="session")
def sglang_launch(sglang_model: Path) -> Iterator[tuple[str, ...]]:
    """`engine.sglang.launch` of runs: the same server, without its imports."""
    if not PYTHON.exists():
        pytest.skip("`make sglang-cpu` builds .venv-sglang")
    of_a_run = ServerLaunch((str(PYTHON),), str(sglang_model), "float32", "cpu", 1, 128)
    with launch_of(str(PYTHON), MODULES, environment(of_a_run, [0])) as launch:
        yield launch


@pytest.fixture
def sglang_start(
    sglang_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Server]]:
    """Starts a server of one's own with more arguments. It lives as long as the test: others want
    its cores."""
    with ExitStack() as stack:
        yield partial(_start, stack, sglang_model, tmp_path_factory)


def _start(stack: ExitStack, model: Path, folders: pytest.TempPathFactory, *more: str) -> Server:
    if not PYTHON.exists():
        pytest.skip(
            "there is no environment for SGLang here; `make sglang-cpu` builds .venv-sglang"
        )
    log = folders.mktemp("sglang_log") / "server.log"
    return stack.enter_context(running(model, log, *more))


class Shared:
    """One server at a time: the first who asks starts it, and so does the first after its end."""

    def __init__(self, start: Callable[[ExitStack], Server]) -> None:
        self._start, self._stack = start, ExitStack()
        self._server: Server | None = None

    def server(self) -> Server:
        if self._server is None:
            self._server = self._start(self._stack)
        return self._server

    def close(self) -> None:
        self._server = None
        self._stack.close()


@pytest.fixture(scope="session")
def sglang_shared(sglang_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    shared = Shared(lambda stack: _start(stack, sglang_model, tmp_path_factory))
    yield shared
    shared.close()


@pytest.fixture
def sglang_server(sglang_shared: Shared) -> Server:
    """The server that all tests share."""
    return sglang_shared.server()


@pytest.fixture
def sglang_last(sglang_shared: Shared) -> Iterator[Server]:
    """The shared server, for a test that ends it: the last of its folder, or the next test waits
    for another one."""
    yield sglang_shared.server()
    sglang_shared.close()
