"""Real servers for a module's tests: one that all share, which takes half a minute to start, and
more for tests that end them. Tests leave the shared one as they found it: ready, empty, and with
the weights it was started with or others of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from real_sglang import PYTHON, SEED, START_S, Server, running

from asyncrl.training.bundled import new_model, write_tokenizer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a server waits for its start."""
    for item in items:
        if isinstance(item, pytest.Function) and {"sglang_server", "sglang_start"} & set(
            item.fixturenames
        ):
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


@pytest.fixture(scope="module")
def sglang_start(
    sglang_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Server]]:
    """Starts a server of one's own with more arguments, for tests that end it. It lives as long as
    the module: others want its cores."""
    if not PYTHON.exists():
        pytest.skip(
            "there is no environment for SGLang here; `make sglang-cpu` builds .venv-sglang"
        )
    with ExitStack() as stack:

        def start(*more: str) -> Server:
            return stack.enter_context(
                running(sglang_model, tmp_path_factory.mktemp("sglang_log") / "server.log", *more)
            )

        yield start


@pytest.fixture(scope="module")
def sglang_server(sglang_start: Callable[..., Server]) -> Server:
    """The one that a module's tests share."""
    return sglang_start()
