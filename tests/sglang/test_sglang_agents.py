"""An agent behind the gateway of a real server: its calls are sessions like those of any other
engine, also during a publication."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import trio
from real_sglang import Server

from asyncrl.engines.options import EngineOptions
from asyncrl.engines.sglang import canary
from asyncrl.engines.sglang import client as client_module
from asyncrl.engines.sglang.client import Client
from asyncrl.engines.sglang.engine import SglangEngine
from asyncrl.engines.sglang.weight_loader import WeightLoader
from asyncrl.engines.sglang.weight_transfer import DiskTransfer
from asyncrl.gateway.app import application, has_key
from asyncrl.gateway.engine_generator import EngineGenerator
from asyncrl.gateway.gateway import Gateway
from asyncrl.gateway.gateway_settings import Settings
from asyncrl.gateway.serve import serve
from asyncrl.ipc.waits import Waits
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.bundled import END_ID, VOCABULARY, new_model

CONTEXT = 600
KEY, MODEL = "the-key-of-this-run", "policy"
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

    def agent(url: str, publish: Callable[[], Any]) -> None:
        """Two calls; as the second streams, the weights change."""
        with openai.OpenAI(base_url=f"{url}/sessions/one/v1", api_key=KEY, max_retries=0) as client:
            said.append(
                client.completions.create(model=MODEL, prompt="hello", max_tokens=8).choices[0].text
            )
            slower = {
                "forward_sleep_time": 0.01
            }  # a forward pass: the response must not end before the publication has begun
            httpx2.post(
                f"{sglang_server.url}/slow_down", json=slower, timeout=60
            ).raise_for_status()
            for at, part in enumerate(
                client.completions.create(
                    model=MODEL, prompt="hello" + said[0], max_tokens=400, stream=True
                )
            ):
                said.append(part.choices[0].text)
                if at == 1:
                    trio.from_thread.run(publish)
        answer = httpx2.post(
            f"{url}/v1/sessions/one/reward",
            json={"reward": 1.0},
            headers={"authorization": f"Bearer {KEY}"},
            timeout=60,
        )
        answer.raise_for_status()

    with trio.fail_after(120):
        async with Client.open(sglang_server.url) as client, trio.open_nursery() as nursery:
            text = canary.text(VOCABULARY, {END_ID})
            publisher = WeightLoader(
                client,
                DiskTransfer(tmp_path / "weights"),
                new_model(0),
                text,
                mode="retract",
                tolerance=1e-3,
                deadline_s=60.0,
            )

            async def load(version: int, given: Any, stop: Callable[[], None]) -> float:
                return (await publisher.load(version, given, stop)).pause_s

            engine = SglangEngine(
                client,
                load,
                EngineOptions(slots=4, context_tokens=CONTEXT, chunk_tokens=8),
                vocab_size=VOCABULARY,
                stop_ids=frozenset({END_ID}),
            )
            generator = EngineGenerator(engine)
            nursery.start_soon(generator.run)
            await engine.load(0, weights(SEEDS[0]))
            settings = Settings(model=MODEL, context_tokens=CONTEXT, vocabulary=VOCABULARY)
            gateway, close = (
                Gateway(generator, Tokenizer(sglang_server.model), settings, Waits()),
                trio.Event(),
            )

            async def serving(task_status: trio.TaskStatus[str]) -> None:
                await serve(
                    gateway,
                    application(gateway, KEY),
                    partial(has_key, KEY.encode()),
                    close=close,
                    drain_s=10.0,
                    task_status=task_status,
                )

            url = await nursery.start(serving)
            await trio.to_thread.run_sync(agent, url, lambda: engine.load(1, weights(SEEDS[1])))
            finished = await gateway.fetch()
            close.set()
            nursery.cancel_scope.cancel()
    httpx2.post(
        f"{sglang_server.url}/slow_down", json={"forward_sleep_time": None}, timeout=60
    ).raise_for_status()

    assert (
        finished.calls == 2
        and finished.reward == 1.0
        and finished.meetings == {"opened": 1, "continued": 1}
    )
    (leaf,) = finished.leaves
    ids, behaviour = (
        np.frombuffer(leaf.ids, np.int32).copy(),
        np.frombuffer(leaf.behaviour, np.float32),
    )
    assert leaf.trained == finished.sampled == 408 and [span.version for span in leaf.spans] == [
        0,
        1,
    ], "both versions in the second call"
    assert leaf.spans[0].start == len("hello") and leaf.spans[0].end - leaf.spans[0].start > 8
    for span in leaf.spans:
        expected = np.array(canary.reference(new_model(0), weights(SEEDS[span.version]), ids))
        assert (
            np.abs(behaviour[span.start : span.end] - expected[span.start - 1 : span.end - 1]).max()
            <= 1e-5
        ), span
