"""An agent whose calls a real server answers: what it is told is what the server sampled, also
during a publication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import trio
from gateway_world import KEY, MODEL, served
from real_sglang import Server, slow

from asyncrl.bundled.bundled_model import END_ID, VOCABULARY, new_model
from asyncrl.engines import canary
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Emit
from asyncrl.engines.servers.server_engine import ServerEngine
from asyncrl.engines.sglang import sglang_client as client_module
from asyncrl.tasks.text import Tokenizer
from asyncrl.weightsync.servers.from_disk import FromDisk
from asyncrl.weightsync.servers.weight_loader import WeightLoader

CONTEXT = 600
SEEDS = [21, 22]
"""Of the weights of versions 0 and 1."""


def weights(seed: int) -> dict[str, Any]:
    return {name: parameter.detach() for name, parameter in new_model(seed).named_parameters()}


@pytest.mark.explore
async def test_an_agent_is_answered_by_a_real_server_during_a_publication(
    sglang_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        client_module.WHOLE_DISTRIBUTION, "ignore_eos", True
    )  # random weights end an answer at random
    said: list[str] = []

    def agent(url: str, slower: Callable[[], Any], publish: Callable[[], Any]) -> None:
        """Two calls; as the second streams, the weights change."""
        with openai.OpenAI(
            base_url=f"{url}/sessions/r1-1/v1", api_key=KEY, max_retries=0
        ) as client:
            said.append(
                client.completions.create(model=MODEL, prompt="hello", max_tokens=8).choices[0].text
            )
            slower()
            for at, part in enumerate(
                client.completions.create(
                    model=MODEL, prompt="hello" + said[0], max_tokens=400, stream=True
                )
            ):
                said.append(part.choices[0].text)
                if at == 1:
                    publish()

    with trio.fail_after(120):
        async with sglang_server.client() as client:
            text = canary.text(VOCABULARY, {END_ID})
            publisher = WeightLoader(
                client,
                FromDisk(tmp_path / "weights"),
                new_model(0),
                text,
                mode="retract",
                tolerance=1e-3,
                deadline_s=60.0,
            )

            async def load(version: int, given: Any, _: Any, stop: Callable[[], None]) -> float:
                reference = canary.reference(new_model(0), given, text)
                return (await publisher.load(version, given, reference, stop)).pause_s

            engine = ServerEngine(
                client,
                load,
                EngineOptions(slots=4, context_tokens=CONTEXT, chunk_tokens=8),
                vocab_size=VOCABULARY,
                stop_ids=frozenset({END_ID}),
            )
            chunks = list[Chunk]()
            run = engine.run

            async def kept(emit: Emit) -> None:
                async def keep(found: Sequence[Chunk]) -> None:
                    chunks.extend(found)
                    await emit(found)

                await run(keep)

            monkeypatch.setattr(engine, "run", kept)
            tokenizer = Tokenizer(sglang_server.model)
            async with served(engine, tokenizer, context_tokens=CONTEXT) as (coordinator, url):
                await engine.load(0, weights(SEEDS[0]))
                # the response must not end before the publication has begun
                slower = partial(trio.from_thread.run, slow, client, 0.01)
                publish = partial(trio.from_thread.run, engine.load, 1, weights(SEEDS[1]))
                await trio.to_thread.run_sync(agent, url, slower, publish)
            await slow(client, None)

    assert len(coordinator.asks) == 2
    first, second = ([c for c in chunks if c.rollout == call] for call in (0, 1))
    ids = np.concatenate([np.array(tokenizer.ids("hello"), np.int32), *(c.ids for c in chunks)])
    behaviour = np.concatenate([chunk.behaviour for chunk in chunks])
    assert sum(len(c.ids) for c in first) == 8 and sum(len(c.ids) for c in second) == 400
    versions = np.concatenate([np.full(len(c.ids), c.version) for c in chunks])
    assert set(versions[:8]) == {0} and set(versions[8:]) == {0, 1}, "both in the second call"
    assert "".join(said) == tokenizer.decode(ids[5:].tolist())
    for version in (0, 1):
        expected = np.array(canary.reference(new_model(0), weights(SEEDS[version]), ids))[4:]
        assert np.abs(behaviour - expected)[versions == version].max() <= 1e-5, version
