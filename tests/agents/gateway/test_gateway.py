"""The gateway over HTTP, in virtual time, before an engine that says what it is told."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
import trio
from gateway_world import (
    CONTEXT,
    KEY,
    MODEL,
    Says,
    chat,
    events,
    ids,
    opened,
    say,
    scripted,
    write_chat,
)
from tokenizers import Tokenizer as Fast
from trio.testing import MockClock

from asyncrl.agents.gateway import played_sessions
from asyncrl.bundled.bundled_model import END_ID, VOCABULARY, write_tokenizer
from asyncrl.engines.scripted import Script
from asyncrl.messages import Abort
from asyncrl.tasks.text import Tokenizer

CHAT, TEXT = "/sessions/r1-1/v1/chat/completions", "/sessions/r1-1/v1/completions"
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}},
}
CALL = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


def refused(response: httpx2.Response, status: int, code: str) -> str:
    """The sentence of a refusal in OpenAI's form."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
    assert "Traceback" not in response.text and len(error["message"]) > 10
    return str(error["message"])


async def test_the_first_request_of_an_agent_is_heard_and_no_strangers(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """Whatever it asks for: its program has started."""
    heard = list[int]()
    async with opened(scripted(Says(say("hi"))), tokenizer) as (coordinator, client):
        for rollout, (method, path) in enumerate(
            (
                ("GET", "/sessions/r{}-1/v1/models"),
                ("GET", "/v1/sessions/r{}-1/notes/a"),
                ("POST", "/sessions/r{}-1/v1/chat/completions"),
                ("POST", "/v1/sessions/r{}-1/reward"),
            ),
            start=10,
        ):
            play = msgspec.structs.replace(coordinator.play(rollout).play, attempt=2)
            coordinator.sessions.open(play, nullcontext, partial(heard.append, rollout))
            path = path.format(rollout).replace("-1", "-2")
            stranger = {"authorization": "Bearer other"}
            assert (await client.request(method, path, headers=stranger)).status_code == 401
            assert rollout not in heard
            await client.request(method, path)
            assert rollout in heard


async def test_a_call_is_answered(tokenizer: Tokenizer, virtual: MockClock) -> None:
    says = Says(say("héllo"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(3, None)
        asked = chat("hi", seed=1, temperature=0.5, logprobs=True)
        response = await client.post(CHAT, json=asked)
        assert response.status_code == 200, response.text
        assert response.headers["x-ignored"] == "seed, temperature"
        body = response.json()
        (choice,) = body["choices"]
        assert (
            choice["message"] == {"role": "assistant", "content": "héllo", "refusal": None}
            and choice["finish_reason"] == "stop"
        )
        assert [token["logprob"] for token in choice["logprobs"]["content"]] == [
            -(i + 1) / 8 for i in range(7)
        ]
        assert body["usage"] == {
            "prompt_tokens": len(ids("[user]hi$[assistant]")),
            "completion_tokens": 7,
            "total_tokens": 27,
        }
    assert says.requests[0].ids.tolist() == ids("[user]hi$[assistant]")
    (ask,) = coordinator.asks
    assert (ask.rollout, ask.attempt, ask.number) == (1, 1, 0)
    assert ask.max_new_tokens == CONTEXT - 20 and coordinator.enough() == []


async def test_a_reply_has_the_names_of_special_tokens_if_they_are_not_skipped(
    tmp_path: Path, virtual: MockClock
) -> None:
    write_chat(tmp_path)
    (file := Fast.from_file(str(tmp_path / "tokenizer.json"))).add_special_tokens(["</think>"])
    file.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path, chat=True)
    said = [ord("1"), *tokenizer.ids("</think>"), ord("2"), END_ID]
    behaviour = -np.ones(len(said), np.float32)
    engine = scripted(Says(Script(np.array(said, np.int32), behaviour, 0.001, "stop")))
    replies = []
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        for skip in ({}, {"skip_special_tokens": True}, {"skip_special_tokens": False}):
            (choice,) = (await client.post(CHAT, json=chat("hi", **skip))).json()["choices"]
            replies.append(choice["message"]["content"])
        asked = {**chat("hi"), "stream": True, "skip_special_tokens": False}
        parts = events((await client.post(CHAT, json=asked)).text)
    replies.append("".join(p["choices"][0]["delta"].get("content", "") for p in parts))
    assert replies == ["12", "12", "1</think>2", "1</think>2"]


@pytest.mark.parametrize("kind", [CHAT, TEXT])
async def test_a_stream_is_the_answer_in_parts(
    tokenizer: Tokenizer, virtual: MockClock, kind: str
) -> None:
    asked: dict[str, Any] = (
        chat("hi", tools=[ADD], logprobs=True)
        if kind == CHAT
        else {"model": MODEL, "prompt": "hi", "logprobs": 0}
    )
    engine = scripted(Says(say(f"é😀 {CALL}{CALL}")), chunk_tokens=1)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        whole = (await client.post(kind, json=asked)).json()
        response = await client.post(
            kind, json={**asked, "stream": True, "stream_options": {"include_usage": True}}
        )
        assert response.headers["content-type"].startswith("text/event-stream")
        parts = events(response.text)
    assert parts[-1]["usage"] == whole["usage"] and parts[-1]["choices"] == []
    choices = [part["choices"][0] for part in parts[:-1]]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [
        whole["choices"][0]["finish_reason"]
    ]
    (expected,) = whole["choices"]
    if kind == TEXT:
        assert (
            "".join(choice["text"] for choice in choices) == expected["text"] == f"é😀 {CALL}{CALL}"
        )
        assert [p for c in choices for p in c["logprobs"]["token_logprobs"]] == expected[
            "logprobs"
        ]["token_logprobs"]
    else:
        assert (
            "".join(choice["delta"].get("content", "") for choice in choices)
            == expected["message"]["content"]
            == "é😀 I add.I add."
        )
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
        assert [call["index"] for call in calls] == [0, 1] and len(
            {call["id"] for call in calls}
        ) == 2
        assert [call["function"] for call in calls] == [
            call["function"] for call in expected["message"]["tool_calls"]
        ]
        assert expected["finish_reason"] == "tool_calls"
        scores = [
            token
            for choice in choices
            if choice["logprobs"]
            for token in choice["logprobs"]["content"]
        ]
        assert scores == expected["logprobs"]["content"]
        known = bytes(byte for score in scores for byte in score["bytes"] or b"")
        # a byte of é or 😀 alone is no text
        assert known.decode() == f" {CALL}{CALL}<|end|>"


async def test_two_turns_with_a_tool(tokenizer: Tokenizer, virtual: MockClock) -> None:
    says = Says(say(CALL), say("3"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        first = (await client.post(CHAT, json=chat("1+2?", tools=[ADD]))).json()["choices"][0]
        (call,) = first["message"]["tool_calls"]
        assert (
            call["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
            and first["message"]["content"] == "I add."
        )
        result = {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": [{"type": "text", "text": "3"}],
        }
        second = await client.post(CHAT, json=chat("1+2?", first["message"], result, tools=[ADD]))
        assert second.json()["choices"][0]["message"]["content"] == "3"
    assert says.asked()[1] == f"{says.asked()[0]}{CALL}<|end|>[tool]3<|end|>[assistant]"


async def test_pain_18_what_was_sampled_is_the_context_and_no_second_tokenization(
    tmp_path: Path, virtual: MockClock
) -> None:
    """The tokenizer knows `ab` as one id, and the model sampled it as two. What another attempt
    sampled is not known to this one."""
    write_tokenizer(tmp_path, ["ab"])
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.ids("ab") != ids("ab")
    says = Says(say("ab"), say("x"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        coordinator.play(2)
        for path, prompt in (
            (TEXT, "q:"),
            (TEXT, "q:ab, ab"),
            (TEXT, "q:a, ab"),
            ("/sessions/r2-1/v1/completions", "q:ab, "),
        ):
            asked = {"model": MODEL, "prompt": prompt}
            assert (await client.post(path, json=asked)).status_code == 200
    ab = tokenizer.ids("ab")
    assert [request.ids.tolist() for request in says.requests] == [
        ids("q:"),
        [*ids("q:ab, "), *ab],
        [*ids("q:a, "), *ab],
        [*ids("q:"), *ab, *ids(", ")],
    ]


async def test_a_stop_string_ends_the_answer_and_enough_is_said(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("one two three four", ends="hang")), chunk_tokens=10)
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        response = await client.post(CHAT, json=chat("hi", stop=[" tw", "zzz"]))
        (choice,) = response.json()["choices"]
        assert choice["message"]["content"] == "one" and choice["finish_reason"] == "stop"
        await trio.testing.wait_all_tasks_blocked()
    assert coordinator.enough() == [len("one tw")]


async def test_length_ends_an_answer(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("0123456789")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        for name in ("max_tokens", "max_completion_tokens"):
            (choice,) = (await client.post(CHAT, json=chat("hi", **{name: 4}))).json()["choices"]
            assert choice["finish_reason"] == "length" and choice["message"]["content"] == "0123"


async def test_the_key_is_asked_for_before_anything(tokenizer: Tokenizer) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        for header in ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", "Bearer \u00e9"):
            for method, path in (
                ("POST", CHAT),
                ("GET", "/sessions/r1-1/v1/models"),
                ("POST", "/v1/sessions/r1-1/reward"),
                ("POST", "/v1/sessions/r1-1/notes/a"),
            ):
                response = await client.request(
                    method, path, content=b"{", headers={"authorization": header.encode()}
                )  # type: ignore[dict-item]
                refused(response, 401, "invalid_api_key")
        answer = await client.get("/sessions/r1-1/v1/models")
        assert answer.json()["data"][0]["id"] == MODEL


async def test_no_call_is_taken_while_much_waits_to_be_sent(
    tokenizer: Tokenizer, virtual: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played_sessions, "WAITING", 2)
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        for _ in range(3):  # the coordinator has not read them yet
            coordinator.sessions.say(Abort(1))
        assert (await client.get("/ready", headers={"authorization": ""})).status_code == 503
        response = await client.post(CHAT, json=chat("hi"))
        refused(response, 503, "not_ready")
        assert response.headers["retry-after"] == "1"
        await trio.testing.wait_all_tasks_blocked()
        assert (await client.get("/ready", headers={"authorization": ""})).status_code == 200
        assert (await client.post(CHAT, json=chat("hi"))).status_code == 200


async def test_a_session_that_is_none_is_said(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        for name, status, code in (
            ("r2-1", 404, "unknown_session"),
            ("a%20b", 400, "session_name"),
            ("a" * 65, 400, "session_name"),
        ):
            path = f"/sessions/{name}/v1/chat/completions"
            refused(await client.post(path, json=chat("hi")), status, code)
        coordinator.sessions.close(coordinator.sessions.named("r1-1"))
        refused(await client.post(CHAT, json=chat("hi")), 404, "unknown_session")
    assert coordinator.asks == []


async def test_an_attempt_that_ends_ends_its_calls(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("0123456789", pace=1.0)), chunk_tokens=2)
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        answers: list[httpx2.Response] = []

        async def call() -> None:
            answers.append(await client.post(CHAT, json=chat("hi")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(5.5)
            coordinator.sessions.close(coordinator.sessions.named("r1-1"))
        refused(answers[0], 404, "unknown_session")
    assert coordinator.enough() == [], "nothing is said of an attempt that is over"


async def test_a_call_that_takes_too_long_is_interrupted(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("0123456789", pace=1.0)))
    async with opened(engine, tokenizer, call_s=3.5) as (_, client):
        await engine.load(0, None)
        begun = trio.current_time()
        refused(await client.post(CHAT, json=chat("hi")), 504, "too_slow")
        assert trio.current_time() - begun == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("token", "behaviour"), [(-1, -1.0), (VOCABULARY, -1.0), (65, np.nan), (65, -np.inf)]
)
async def test_an_engine_that_cannot_be_believed_is_said(
    tokenizer: Tokenizer, virtual: MockClock, token: int, behaviour: float
) -> None:
    whole = say("0123456789")
    whole.ids[5], whole.behaviour[5] = token, behaviour
    engine = scripted(Says(whole))
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        refused(await client.post(CHAT, json=chat("hi")), 502, "bad_engine")
        await trio.testing.wait_all_tasks_blocked()
    assert coordinator.enough() == [4], "the chunk before is good"


async def test_as_many_calls_as_may_be(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x", pace=1.0)))
    async with opened(engine, tokenizer, calls=2) as (coordinator, client):
        await engine.load(0, None)
        responses: list[httpx2.Response] = []

        async def call(rollout: int) -> None:
            responses.append(
                await client.post(f"/sessions/r{rollout}-1/v1/chat/completions", json=chat("hi"))
            )

        async with trio.open_nursery() as nursery:
            for rollout in range(2, 7):
                coordinator.play(rollout)
                nursery.start_soon(call, rollout)
        assert sorted(response.status_code for response in responses) == [200, 200, 429, 429, 429]
        assert all(
            response.headers["retry-after"] == "1"
            for response in responses
            if response.status_code == 429
        )
        assert (await client.post(CHAT, json=chat("hi"))).status_code == 200


async def test_ids_as_a_prompt_are_the_context(tokenizer: Tokenizer, virtual: MockClock) -> None:
    says = Says(say("x"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        body = (await client.post(TEXT, json={"model": MODEL, "prompt": [1, 2, END_ID]})).json()
        assert body["object"] == "text_completion" and body["choices"][0]["text"] == "x"
        for prompt in (["one"], [[1]]):  # one prompt, in the form of several
            response = await client.post(TEXT, json={"model": MODEL, "prompt": prompt})
            assert response.status_code == 200
        bad: list[Any] = [[1, 260], [3_000_000_000], [-1], [], [1, "a"], ["a", "b"], ""]
        for prompt in (*bad, [[]], [[1], [2]], [[1, "a"]], [[1], 2]):
            response = await client.post(TEXT, json={"model": MODEL, "prompt": prompt})
            assert response.status_code == 400 and response.json()["error"]["message"], prompt
        refused(
            await client.post(TEXT, json={"model": MODEL, "prompt": [1] * CONTEXT}),
            400,
            "context_length_exceeded",
        )
        refused(
            await client.post(TEXT, json={"model": MODEL, "prompt": "a", "max_tokens": CONTEXT}),
            400,
            "context_length_exceeded",
        )
    assert says.requests[0].ids.tolist() == [1, 2, END_ID]


async def test_what_the_gateway_did_wrong_is_no_traceback(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)

        def ask(*_: object) -> None:
            raise RuntimeError("secret/path")

        monkeypatch.setattr(coordinator.sessions.named("r1-1"), "ask", ask)
        assert "secret" not in refused(
            await client.post(CHAT, json=chat("hi")), 500, "internal_error"
        )
