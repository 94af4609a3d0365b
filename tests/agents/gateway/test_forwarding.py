"""Calls of models that are not trained, forwarded to doubles of their APIs, in virtual time."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from gateway_world import AnsweringCoordinator, Says, opened, say, scripted, write_chat
from trio.testing import MockClock

from asyncrl.agents.gateway.forwarding import open_forwarding
from asyncrl.agents.gateway.other_call import ANSWER_BYTES
from asyncrl.config.schema.other_models import OtherModel
from asyncrl.messages import Ask, Note
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.text import Tokenizer

CHAT, MESSAGES = "/sessions/r1-1/v1/chat/completions", "/sessions/r1-1/v1/messages"
SECRET = "sk-secret-7"
OPPONENT = OtherModel(url="http://far/api/v1/", model="real-name", timeout_s=20.0, concurrency=2)
Answering = Callable[[int], httpx2.Response | Exception]


class FarApi(httpx2.AsyncBaseTransport):
    """Answers the n-th request after `seconds`."""

    def __init__(self, answer: Answering, seconds: float = 1.0) -> None:
        self._answer, self._seconds = answer, seconds
        self.seen: list[httpx2.Request] = []
        self.open = self.most = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        number = len(self.seen)
        self.seen.append(request)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await request.aread()
            await trio.sleep(self._seconds)
        finally:
            self.open -= 1
        answer = self._answer(number)
        if isinstance(answer, Exception):
            raise answer
        stream = httpx2.ByteStream(answer.content)
        return httpx2.Response(answer.status_code, headers=answer.headers, stream=stream)


def move(number: int) -> httpx2.Response:
    return httpx2.Response(200, json={"id": f"far-{number}", "choices": []})


def body(model: str = "opponent", text: str = "your move") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0.5}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def playing(
    far: FarApi, tokenizer: Tokenizer
) -> AsyncIterator[tuple[AnsweringCoordinator, httpx2.AsyncClient]]:
    engine = scripted(Says(say("own")))
    await engine.load(0, None)
    models = {"opponent": (OPPONENT, SECRET)}
    async with (
        open_forwarding(models, Waits(), far) as others,
        opened(engine, tokenizer, others=others) as world,
    ):
        yield world


async def test_another_model_answers_and_a_later_attempt_hears_the_same(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """Equal calls get answers of their own, in their order, in each attempt; one that failed takes
    no place among them. The run samples nothing for them."""

    def answer(number: int) -> httpx2.Response:
        return httpx2.Response(503, text="later") if number == 1 else move(number)

    far = FarApi(answer)
    async with playing(far, tokenizer) as (coordinator, client):
        own = await client.post(CHAT, json=body("any-name"))
        asked = [await client.post(CHAT, json=body()) for _ in range(3)]
        assert [one.status_code for one in asked] == [200, 503, 200]
        assert asked[1].json()["error"]["code"] == "other_model"
        await trio.testing.wait_all_tasks_blocked()
        notes = {m.name: m.value for m in coordinator.heard if isinstance(m, Note)}
        coordinator.play(1, 2, notes)
        again = [await client.post(CHAT.replace("r1-1", "r1-2"), json=body()) for _ in range(2)]
        listed = (await client.get("/sessions/r1-1/v1/models")).json()
    assert own.json()["choices"][0]["message"]["content"] == "own"
    assert [one.json()["id"] for one in asked[::2]] == ["far-0", "far-2"]
    assert [one.content for one in again] == [one.content for one in asked[::2]]
    assert len(far.seen) == 3 and sum(isinstance(m, Ask) for m in coordinator.heard) == 1
    request = far.seen[0]
    assert str(request.url) == "http://far/api/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert json.loads(request.content) == body("real-name")
    assert [model["id"] for model in listed["data"]] == ["policy", "opponent"]


async def test_calls_of_another_model_are_few_at_a_time_and_end_in_time(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """Five calls of eight seconds, two at a time, within twenty: the fifth is too late."""
    far, statuses = FarApi(move, 8.0), list[int]()
    async with playing(far, tokenizer) as (_, client), trio.open_nursery() as nursery:

        async def call() -> None:
            statuses.append((await client.post(CHAT, json=body())).status_code)

        for _ in range(5):
            nursery.start_soon(call)
    assert far.most == 2 and statuses == [200, 200, 200, 200, 504]
    assert trio.current_time() == pytest.approx(20.0, abs=1.0)


GARBAGE: dict[str, tuple[httpx2.Response | Exception, int]] = {
    "down": (httpx2.ConnectError("refused"), 502),
    "garbage": (httpx2.Response(200, text="<html>"), 502),
    "no text": (httpx2.Response(200, content=b'{"a": "\xff"}'), 502),
    "a list": (httpx2.Response(200, json=[1]), 502),
    "no events": (
        httpx2.Response(200, headers={"content-type": "text/event-stream"}, text="hi"),
        502,
    ),
    "too much": (httpx2.Response(200, json={"a": "x" * ANSWER_BYTES}), 502),
    "a key that is none": (httpx2.Response(401, text=f"no such key: {SECRET}"), 502),
    "a bad request": (httpx2.Response(422, text="no such field"), 400),
    "busy": (httpx2.Response(429, text="slow down"), 429),
}


async def test_an_endpoint_that_answers_garbage_is_an_error_of_the_dialects_form(
    tokenizer: Tokenizer, virtual: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It harms no other call, and no word of it has the key."""
    answers = [*GARBAGE.values()]
    far = FarApi(lambda number: answers[number // 2][0])
    async with playing(far, tokenizer) as (coordinator, client):
        for name, (_, status) in GARBAGE.items():
            anthropic = await client.post(MESSAGES, json=body() | {"max_tokens": 9})
            openai = await client.post(CHAT, json=body())
            assert anthropic.status_code == openai.status_code == status, name
            assert anthropic.json()["type"] == "error", name
            message = openai.json()["error"]["message"]
            assert message == anthropic.json()["error"]["message"]
            assert message.startswith("the model 'opponent' (agent.models, not trained): ")
            assert SECRET not in message
        assert (await client.post(CHAT, json=body("policy"))).status_code == 200
        assert (await client.post(CHAT, content=b"{")).status_code == 400
        assert not any(isinstance(message, Note) for message in coordinator.heard)
    assert caplog.records and all(r.levelno == logging.WARNING for r in caplog.records)
    assert SECRET not in caplog.text


async def test_a_stream_of_another_model_comes_whole(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    events = 'event: ping\ndata: {"a": 1}\n\n'
    kind = {"content-type": "text/event-stream; charset=utf-8"}
    far = FarApi(lambda number: httpx2.Response(200, headers=kind, text=events))
    async with playing(far, tokenizer) as (_, client):
        head = {"anthropic-version": "2023-06-01", "anthropic-beta": "b", "x-other": "no"}
        said = await client.post(MESSAGES, json=body() | {"stream": True}, headers=head)
        counted = await client.post(f"{MESSAGES}/count_tokens", json=body())
    assert (said.text, said.headers["content-type"]) == (events, kind["content-type"])
    assert far.seen[0].headers["anthropic-beta"] == "b" and "x-other" not in far.seen[0].headers
    assert far.seen[0].headers["x-api-key"] == SECRET
    assert counted.status_code == 200 and far.seen[1].url.path.endswith("/messages/count_tokens")
