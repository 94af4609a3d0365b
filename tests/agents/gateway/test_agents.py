"""Agents with the official client, over a socket, in real time."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import torch
import trio
from gateway_world import CONTEXT, KEY, MODEL, Says, say, scripted, served, write_chat

from asyncrl.agents.gateway.serve import serve
from asyncrl.bundled.bundled_model import new_model
from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Chunk, Emit, Engine, Request
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.text import Tokenizer

torch.set_num_threads(1)
PATIENCE_S = 60.0
ADD: Any = {
    "type": "function",
    "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}},
}
TURN = 300
"""Tokens of the second turn: as many as leave time for a publication amid it."""
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


def scores(model: Any, context: list[int], at: range) -> np.ndarray:
    """Log-probabilities that one full forward gives the tokens `at` of `context`."""
    with torch.no_grad():
        every = torch.log_softmax(
            model(input_ids=torch.tensor([context]), use_cache=False).logits[0].float(), -1
        )
    return np.array([every[i - 1, context[i]].item() for i in at], np.float32)


class ByTurn:
    """An engine that has the first request answered by one engine, and the others by another. Every
    chunk that comes is kept."""

    def __init__(self, first: Engine, other: Engine) -> None:
        self._engines, self.chunks = [first, other], list[Chunk]()

    async def run(self, emit: Emit) -> None:
        async def keep(chunks: Sequence[Chunk]) -> None:
            self.chunks += chunks
            await emit(chunks)

        async with trio.open_nursery() as nursery:
            for engine in self._engines:
                nursery.start_soon(engine.run, keep)

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._engines[request.rollout > 0].submit([request])

    def interrupt(self, rollouts: Sequence[int]) -> None:
        for engine in self._engines:
            engine.interrupt(rollouts)


async def test_a_tool_using_agent_during_a_publication(tokenizer: Tokenizer) -> None:
    """Two turns of the official client; between two tokens of the second the weights change. What
    was sampled before is the start of the second context, and what the agent reads is what was
    sampled."""
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
    engine, contexts = ByTurn(first, plain), list[list[int]]()
    replied: list[str] = []

    async def publish() -> None:
        await plain.load(1, dict(models[1].named_parameters()))

    def agent(url: str) -> None:
        messages: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
        with openai.OpenAI(
            base_url=f"{url}/sessions/r1-1/v1", api_key=KEY, max_retries=0
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

    submit = engine.submit

    def submitted(requests: Sequence[Request]) -> None:
        contexts.extend(request.ids.tolist() for request in requests)
        submit(requests)

    engine.submit = submitted  # type: ignore[method-assign]
    with trio.fail_after(PATIENCE_S):
        async with served(engine, tokenizer) as (coordinator, url):  # type: ignore[arg-type]
            await trio.to_thread.run_sync(agent, url)

    assert len(coordinator.asks) == 2
    opening, second = contexts
    called = [*opening, *say(CALL).ids.tolist()]
    assert second[: len(called)] == called
    chunks = [chunk for chunk in engine.chunks if chunk.rollout == 1]
    sampled = np.concatenate([chunk.ids for chunk in chunks]).tolist()
    behaviour = np.concatenate([chunk.behaviour for chunk in chunks])
    tokens = Counter[int]()
    for chunk in chunks:
        tokens[chunk.version] += len(chunk.ids)
    assert tokens.keys() == {0, 1} and tokens.total() == TURN, "the call has both versions"
    context, start = second + sampled, len(second)
    for version, span in ((0, range(tokens[0])), (1, range(tokens[0], TURN))):
        at = range(start + span.start, start + span.stop)
        found = behaviour[span.start : span.stop]
        assert np.abs(found - scores(models[version], context, at)).max() < 2e-4, version
        assert np.abs(found - scores(models[1 - version], context, at)).max() > 1e-2, version
    assert "".join(replied) == tokenizer.decode(sampled), "what the agent read is what was sampled"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_is_told_with_what_comes_next(
    tokenizer: Tokenizer, stream: bool
) -> None:
    """It may be that of an agent that has died, whose next attempt wants the whole answer: so its
    call is interrupted once the same attempt does something else."""
    engine = scripted(Says(say("x" * 1900, pace=0.02), say("y")))
    await engine.load(0, None)
    asked = {"model": MODEL, "prompt": "hi", "stream": stream}
    headers = {"authorization": f"Bearer {KEY}"}

    with trio.fail_after(PATIENCE_S):
        async with (
            served(engine, tokenizer) as (coordinator, url),
            httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S) as client,
        ):
            path = f"{url}/sessions/r1-1/v1/completions"

            async def call() -> None:
                async with client.stream("POST", path, json=asked) as response:
                    async for _ in response.aiter_bytes():
                        break

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await coordinator.asked_first.wait()
                await trio.sleep(0.2)
                nursery.cancel_scope.cancel()
            assert coordinator.enough() == []
            assert (await client.post(path, json=asked)).status_code == 200
            assert len(coordinator.enough()) == 1 and len(coordinator.asks) == 2


async def test_the_official_client_reads_refusals(tokenizer: Tokenizer) -> None:
    engine = scripted(Says(say("x")))
    await engine.load(0, None)

    def agent(url: str) -> None:
        ask: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        base = f"{url}/sessions/r1-1/v1"
        with (
            openai.OpenAI(base_url=base, api_key="other", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.chat.completions.create(**ask)
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client,
            pytest.raises(openai.NotFoundError, match="nothing at this path"),
        ):
            client.chat.completions.create(**ask)
        with openai.OpenAI(base_url=base, api_key=KEY, max_retries=0) as client:
            form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}
            told = client.chat.completions.with_raw_response.create(**ask, response_format=form)
            assert told.headers["x-ignored"] == "response_format", "the agent reads what it got"
            assert client.completions.create(model=MODEL, prompt="hi").choices[0].text == "x"

    with trio.fail_after(PATIENCE_S):
        async with served(engine, tokenizer) as (_, url):
            await trio.to_thread.run_sync(agent, url)


async def test_the_official_client_puts_a_stream_together(tokenizer: Tokenizer) -> None:
    engine = scripted(Says(say(f"I add.\n{CALL}{CALL}")), chunk_tokens=1)
    await engine.load(0, None)

    def agent(url: str) -> None:
        ask: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [ADD],
        }
        base = f"{url}/sessions/r1-1/v1"
        with openai.OpenAI(base_url=base, api_key=KEY, max_retries=0) as client:
            whole = client.chat.completions.create(**ask).choices[0]
            with client.chat.completions.stream(**ask) as stream:
                streamed = stream.get_final_completion().choices[0]
            both = ["", ""]  # two choices at a time share a socket
            for part in client.chat.completions.create(**ask, n=2, stream=True):
                for one in part.choices:
                    both[one.index] += one.delta.content or ""
        assert both == ["I add."] * 2
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

    with trio.fail_after(PATIENCE_S):
        async with served(engine, tokenizer) as (_, url):
            await trio.to_thread.run_sync(agent, url)


async def test_the_gateway_listens_on_loopback_alone() -> None:
    async def app(*_: object) -> None:
        raise AssertionError("nobody asks")

    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        with pytest.raises(ValueError, match=r"listens only on loopback|needs an IP address"):
            await serve(app, lambda _: True, Waits(), host=host)
