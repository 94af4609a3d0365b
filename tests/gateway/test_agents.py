"""Agents with the official client, over a socket, in real time."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import torch
import trio
from gateway_world import CONTEXT, KEY, MODEL, Says, say, scripted, tokens, write_chat

from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.gateway.app import application, has_key
from asyncrl.gateway.engine_generator import EngineGenerator
from asyncrl.gateway.gateway import Gateway
from asyncrl.gateway.gateway_settings import Settings
from asyncrl.gateway.generator import Generation, Generator
from asyncrl.gateway.serve import serve
from asyncrl.ipc.waits import Waits
from asyncrl.sessions.recorder import Bounds
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.bundled import VOCABULARY, new_model

torch.set_num_threads(1)
ADD: Any = {
    "type": "function",
    "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}},
}
TURN = 300
"""Tokens of the second turn: as many as leave time for a publication amid it."""
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


known = partial(has_key, KEY.encode())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


class ByTurn:
    """A generator that answers the first call by one engine, and the others by another."""

    def __init__(self, *generators: Generator) -> None:
        self._generators = [*generators]

    @property
    def ready(self) -> bool:
        return all(generator.ready for generator in self._generators)

    def generate(
        self, session: str, ids: Sequence[int], **asked: Any
    ) -> AbstractContextManager[Generation]:
        generator = self._generators.pop(0) if len(self._generators) > 1 else self._generators[0]
        return generator.generate(session, ids, **asked)


@asynccontextmanager
async def served(
    generator: Generator, tokenizer: Tokenizer, *runs: Any, idle_s: float = 600.0
) -> AsyncIterator[tuple[Gateway, str, trio.Event]]:
    """A gateway on a socket: itself, its URL, and what closes it."""
    settings = Settings(
        model=MODEL, context_tokens=CONTEXT, vocabulary=VOCABULARY, bounds=Bounds(idle_s=idle_s)
    )
    gateway = Gateway(generator, tokenizer, settings, Waits())
    close = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(run)

            async def serving(task_status: trio.TaskStatus[str]) -> None:
                await serve(
                    gateway,
                    application(gateway, KEY),
                    known,
                    close=close,
                    drain_s=10.0,
                    task_status=task_status,
                )

            async with trio.open_nursery() as inner:
                url = await inner.start(serving)
                yield gateway, url, close
                close.set()
            nursery.cancel_scope.cancel()


def give_reward(url: str, session: str, value: float) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    assert (
        httpx2.post(
            f"{url}/v1/sessions/{session}/reward",
            json={"reward": value},
            headers=headers,
            timeout=60,
        ).status_code
        == 200
    )


def scores(model: Any, context: list[int], at: range) -> np.ndarray:
    """Log-probabilities that one full forward gives the tokens `at` of `context`."""
    with torch.no_grad():
        every = torch.log_softmax(
            model(input_ids=torch.tensor([context]), use_cache=False).logits[0].float(), -1
        )
    return np.array([every[i - 1, context[i]].item() for i in at], np.float32)


async def test_a_tool_using_agent_during_a_publication(tokenizer: Tokenizer) -> None:
    """Two turns of the official client; between two tokens of the second the weights change."""
    models = [new_model(0), new_model(1)]
    plain = EmbeddedEngine(
        copy.deepcopy(models[0]),
        EmbeddedOptions(
            slots=2,
            context_tokens=CONTEXT,
            chunk_tokens=2,
            stop_ids=frozenset(),
            run_seed=0,
            kv="recompute",
        ),
    )
    first = scripted(Says(say(CALL)))
    await first.load(0, None)
    await plain.load(0, dict(models[0].named_parameters()))
    generators = [EngineGenerator(first), EngineGenerator(plain)]
    replied: list[str] = []

    async def publish() -> None:
        await plain.load(1, dict(models[1].named_parameters()))

    def agent(url: str) -> None:
        messages: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
        with openai.OpenAI(
            base_url=f"{url}/sessions/agent-1/v1", api_key=KEY, max_retries=0
        ) as client:
            assert [model.id for model in client.models.list()] == [MODEL]
            reply = client.chat.completions.create(model=MODEL, messages=messages, tools=[ADD])
            assert reply.choices[0].finish_reason == "tool_calls"
            messages.append(reply.choices[0].message)
            for call in reply.choices[0].message.tool_calls or []:
                assert call.type == "function" and call.function.name == "add"
                given = json.loads(call.function.arguments)
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": call.id,
                        "content": str(given["a"] + given["b"]),
                    }
                )
            stream = client.chat.completions.create(
                model=MODEL,
                messages=messages,
                tools=[ADD],
                max_tokens=TURN,
                stream=True,
                logprobs=True,
            )
            for at, part in enumerate(stream):
                replied.append(part.choices[0].delta.content or "")
                if at == 2:
                    trio.from_thread.run(publish)
        give_reward(url, "agent-1", 1.0)

    async with served(ByTurn(*generators), tokenizer, generators[0].run, generators[1].run) as (
        gateway,
        url,
        _,
    ):
        await trio.to_thread.run_sync(agent, url)
        finished = await gateway.fetch()

    assert finished.meetings == {"opened": 1, "continued": 1} and finished.reward == 1.0
    (leaf,) = finished.leaves
    context, mask, behaviour = (
        tokens(leaf.ids),
        list(leaf.mask),
        np.frombuffer(leaf.behaviour, np.float32),
    )
    assert len(context) == len(mask) == len(behaviour) and sum(mask) == len(CALL) + 1 + TURN
    assert [span.version for span in leaf.spans] == [0, 0, 1], "the second call shows both versions"
    call, before, after = leaf.spans
    assert (
        before.end == after.start and after.end == len(context) and after.end - before.start == TURN
    )
    assert behaviour[call.start : call.end].tolist() == say(CALL).behaviour.tolist()
    for span in (before, after):
        at = range(span.start, span.end)
        assert (
            np.abs(
                behaviour[span.start : span.end] - scores(models[span.version], context, at)
            ).max()
            < 2e-4
        ), span
        assert (
            np.abs(
                behaviour[span.start : span.end] - scores(models[1 - span.version], context, at)
            ).max()
            > 1e-2
        )
    assert "".join(replied) == tokenizer.decode(context[before.start :]), (
        "what the agent read is what was sampled"
    )


class Begins(Says):
    """Says when it was asked for the first time."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self.asked_first = trio.Event()

    def __call__(self, request: Request) -> Script:
        self.asked_first.set()
        return super().__call__(request)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_interrupts_its_call(
    tokenizer: Tokenizer, stream: bool
) -> None:
    says = Begins(say("x" * 1900, pace=0.02))
    engine = scripted(says)
    await engine.load(0, None)
    generator = EngineGenerator(engine)
    asked = {"model": MODEL, "prompt": "hi", "stream": stream}
    headers = {"authorization": f"Bearer {KEY}"}

    async with (
        served(generator, tokenizer, generator.run, idle_s=0.1) as (gateway, url, _),
        httpx2.AsyncClient() as client,
    ):

        async def call() -> None:
            async with client.stream(
                "POST", f"{url}/sessions/s/v1/completions", json=asked, headers=headers
            ) as response:
                async for _ in response.aiter_bytes():
                    break

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await says.asked_first.wait()
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()
        with trio.fail_after(20):  # the script takes longer
            finished = await gateway.fetch()
    assert finished.end == "expired" and finished.calls == 1 and 0 < finished.sampled < 1900


async def test_closing_lets_a_call_end(tokenizer: Tokenizer) -> None:
    says = Begins(say("x" * 50, pace=0.01))
    engine = scripted(says)
    await engine.load(0, None)
    generator = EngineGenerator(engine)
    replies: list[str] = []

    def agent(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/sessions/s/v1", api_key=KEY, max_retries=0) as client:
            reply = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}]
            )
            replies.append(reply.choices[0].message.content or "")

    async with (
        served(generator, tokenizer, generator.run) as (gateway, url, close),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(trio.to_thread.run_sync, agent, url)
        await says.asked_first.wait()
        close.set()
        finished = await gateway.fetch()
    assert replies == ["x" * 50]
    assert (finished.end, finished.sampled) == ("drained", 51)
    with pytest.raises(httpx2.ConnectError):
        await trio.to_thread.run_sync(httpx2.get, f"{url}/ready")


async def test_the_official_client_reads_refusals(tokenizer: Tokenizer) -> None:
    engine = scripted(Says(say("x")))
    await engine.load(0, None)
    generator = EngineGenerator(engine)

    def agent(url: str) -> None:
        ask: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        with (
            openai.OpenAI(
                base_url=f"{url}/sessions/s/v1", api_key="other", max_retries=0
            ) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.chat.completions.create(**ask)
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match="base URL"):
                client.chat.completions.create(**ask)
            with pytest.raises(openai.BadRequestError, match="top_p must be 1"):
                client.chat.completions.create(**ask, top_p=0.5, extra_headers={"x-session": "s"})
            assert (
                client.completions.create(
                    model=MODEL, prompt="hi", extra_headers={"x-session": "s"}
                )
                .choices[0]
                .text
                == "x"
            )

    async with served(generator, tokenizer, generator.run) as (_, url, _):
        await trio.to_thread.run_sync(agent, url)


async def test_the_official_client_puts_a_stream_together(tokenizer: Tokenizer) -> None:
    engine = scripted(Says(say(f"I add.\n{CALL}{CALL}")), chunk_tokens=1)
    await engine.load(0, None)
    generator = EngineGenerator(engine)

    def agent(url: str) -> None:
        ask: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [ADD],
        }
        with openai.OpenAI(base_url=f"{url}/sessions/s/v1", api_key=KEY, max_retries=0) as client:
            whole = client.chat.completions.create(**ask).choices[0]
            with client.chat.completions.stream(**ask) as stream:
                streamed = stream.get_final_completion().choices[0]
        assert (
            (streamed.message.role, streamed.message.content)
            == (whole.message.role, whole.message.content)
            == ("assistant", "I add.")
        )
        for choice in (streamed, whole):
            calls = choice.message.tool_calls or []
            assert [call.function.arguments for call in calls if call.type == "function"] == [
                '{"a": 1, "b": 2}'
            ] * 2
            assert choice.finish_reason == "tool_calls"

    async with served(generator, tokenizer, generator.run) as (_, url, _):
        await trio.to_thread.run_sync(agent, url)


async def test_the_door_listens_on_loopback_alone(tokenizer: Tokenizer, tmp_path: Path) -> None:
    engine = scripted(Says(say("x")))
    gateway = Gateway(
        EngineGenerator(engine),
        tokenizer,
        Settings(model=MODEL, context_tokens=CONTEXT, vocabulary=VOCABULARY),
        Waits(),
    )
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        with pytest.raises(ValueError, match=r"loopback alone|listens on an address"):
            await serve(
                gateway,
                application(gateway, KEY),
                known,
                host=host,
                close=trio.Event(),
                drain_s=1.0,
            )
