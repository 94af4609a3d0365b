"""Every engine obeys the protocol; so does the one that the page on extending asyncrl shows."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import trio
from protocol_checks import CONTEXT, VOCABULARY, check_protocol, request, running
from reference import random_model

from asyncrl.config import load
from asyncrl.config.engines import capabilities
from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk
from asyncrl.engines.scripted import ScriptedEngine, hashed
from asyncrl.engines.spec import EngineContext, engine_kind
from asyncrl.runtime.ipc.waits import Waits

EXAMPLES = Path(__file__).parents[2] / "docs/examples/extending"
SIZES = EngineOptions(slots=2, context_tokens=CONTEXT, chunk_tokens=4)


@pytest.mark.parametrize("keeps_versions", [True, False])
async def test_the_scripted_engine(keeps_versions: bool) -> None:
    script = hashed(vocab_size=VOCABULARY, stop_id=0, seconds_per_token=0.0001)
    engine = ScriptedEngine(script, SIZES, vocab_size=VOCABULARY, keeps_versions=keeps_versions)
    await check_protocol(engine, weights=None, keeps_versions=keeps_versions)


async def test_the_embedded_engine() -> None:
    torch.set_num_threads(1)
    model = random_model("qwen3")
    options = EmbeddedOptions(
        slots=2, context_tokens=CONTEXT, chunk_tokens=4, stop_ids=frozenset(), run_seed=0
    )
    engine = EmbeddedEngine(copy.deepcopy(model), options)
    await check_protocol(engine, weights=dict(model.named_parameters()), keeps_versions=True)


@pytest.fixture
def counting() -> Iterator[Any]:
    """The engine of docs/extending.md, as `counting`."""
    engine, test = ((EXAMPLES / name).read_text() for name in ("counting.py", "test_counting.py"))
    sys.modules["counting"] = module = ModuleType("counting")
    try:
        exec(compile(engine, "counting.py", "exec"), module.__dict__)
        exec(compile(test, "test_counting.py", "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules["counting"]


async def test_the_engine_of_the_page(counting: Any) -> None:
    await counting.test_it_obeys_the_protocol()


async def test_the_engine_of_the_page_is_opened_by_its_name(counting: Any) -> None:
    config = load(None, ["engine.kind=counting:CountingEngine", "engine.chunk_tokens=4"], {})
    assert not capabilities(config.engine.kind).keeps_versions
    context = EngineContext(
        config, Path(), Path(), 0, None, SimpleNamespace(vocabulary=VOCABULARY), Waits()
    )  # type: ignore[arg-type]
    async with engine_kind(config.engine.kind).open(context) as engine, running(engine) as emitted:
        await engine.load(5, None)
        engine.submit([request(1, 10)])
        await emitted.ended(1)
        ids = np.concatenate([chunk.ids for chunk in emitted.of(1)])
        assert ids.tolist() == [*range(10)] and {c.version for c in emitted.of(1)} == {5}


class _Broken(ScriptedEngine):
    """Gives one chunk in a wrong way."""

    fault = ""

    async def run(self, emit: Any) -> None:
        async def wrong(chunks: list[Chunk]) -> None:
            await emit([_BREAK[self.fault](chunk) for chunk in chunks])

        await super().run(wrong)


def _changed(**fields: Any) -> Any:
    def change(chunk: Chunk) -> Chunk:
        values = {name: getattr(chunk, name) for name in chunk.__struct_fields__}
        return Chunk(**values | {name: new(chunk) for name, new in fields.items()})

    return change


_BREAK = {
    "another version": _changed(version=lambda chunk: chunk.version + 1),
    "a gap": _changed(start=lambda chunk: chunk.start + 1),
    "a wrong id": _changed(ids=lambda chunk: chunk.ids + VOCABULARY),
    "half of the log-probabilities": _changed(behaviour=lambda c: c.behaviour[: len(c.ids) // 2]),
    "no number": _changed(behaviour=lambda chunk: chunk.behaviour * np.nan),
    "an early end": _changed(finish=lambda chunk: chunk.finish or "length"),
}


@pytest.mark.parametrize("fault", _BREAK)
async def test_the_checks_find_an_engine_that_does_not(fault: str) -> None:
    script = hashed(vocab_size=VOCABULARY, stop_id=0, seconds_per_token=0.0001)
    engine = _Broken(script, SIZES, vocab_size=VOCABULARY)
    engine.fault = fault
    with pytest.raises((AssertionError, trio.TooSlowError, BaseExceptionGroup)):
        await check_protocol(engine, weights=None, keeps_versions=True)
