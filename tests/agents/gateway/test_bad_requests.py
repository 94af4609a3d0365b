"""Bad requests: one sentence in OpenAI's form, whatever was sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from gateway_world import CONTEXT, MODEL, Says, chat, opened, say, scripted, write_chat
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from trio.testing import MockClock

from asyncrl.agents.gateway import api_requests
from asyncrl.agents.gateway.dialects import anthropic_messages, completions, responses
from asyncrl.agents.gateway.dialects import chat as chat_calls
from asyncrl.agents.gateway.dialects.chat import ChatRequest
from asyncrl.agents.gateway.dialects.every_dialect import every_dialect
from asyncrl.agents.gateway.dialects.parameters import FORMS
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.bundled.bundled_model import VOCABULARY
from asyncrl.tasks import TaskError
from asyncrl.tasks.text import Tokenizer

LIMITS = Settings(model=MODEL, context_tokens=CONTEXT, vocabulary=VOCABULARY)
STRICT = msgspec.structs.replace(LIMITS, strict=True, blind="")
CHAT, TEXT = "/sessions/r1-1/v1/chat/completions", "/sessions/r1-1/v1/completions"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


NAMES = st.sampled_from(
    [
        *ChatRequest.__struct_fields__,
        *completions.TextRequest.__struct_fields__,
        *anthropic_messages.MessagesRequest.__struct_fields__,
        *responses.ResponsesRequest.__struct_fields__,
        "type",
        "name",
        "tool_use",
        "role",
        "content",
        "x",
        "function",
    ]
)
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([MODEL, "user", "assistant", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def accepted(body: bytes, tokenizer: Tokenizer) -> None:
    """Take a body as far as its ids. Only GatewayError, or TaskError of the template, may come of
    it."""
    for dialect in every_dialect():
        for limits in (LIMITS, STRICT):
            try:
                call = dialect.read(body, limits)
                assert call.budget is None or call.budget > 0
                assert len(call.stops) <= 16 and all(call.stops)
                assert 1 <= call.choices <= 8 and (call.messages or call.prompt is not None)
                tokenizer.ids(tokenizer.render(call.messages, call.tools))
            except GatewayError as error:
                assert 400 <= error.status < 500 and len(error.message) > 5
                assert "error" in msgspec.json.decode(dialect.error(error))
            except TaskError as error:
                assert "template" in str(error)


@settings(max_examples=drawn(300))
@given(body=st.binary(max_size=60) | ANY.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_request_or_a_sentence(tokenizer: Tokenizer, body: bytes) -> None:
    accepted(body, tokenizer)
    for read in (api_requests.turn_reward, api_requests.turn_failed, api_requests.note):
        try:
            read(body)
        except GatewayError as error:
            assert 400 <= error.status < 500


@settings(max_examples=drawn(300))
@given(
    change=st.dictionaries(NAMES, ANY, max_size=2),
    message=st.dictionaries(NAMES, ANY, max_size=3),
    call=ANY,
)
def test_almost_a_request_is_one_or_a_sentence(
    tokenizer: Tokenizer, change: dict[str, Any], message: dict[str, Any], call: Any
) -> None:
    messages = [
        {"role": "user", "content": "a", **message},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    accepted(json.dumps({"model": MODEL, "messages": messages, **change}).encode(), tokenizer)
    accepted(json.dumps({"model": MODEL, "prompt": "a", **change}).encode(), tokenizer)
    items = [{"type": "message", **messages[0]}, call if isinstance(call, dict) else {}]
    accepted(json.dumps({"model": MODEL, "input": items, **change}).encode(), tokenizer)
    blocks = [{"role": "user", "content": [call]}, messages[0]]
    accepted(json.dumps({"model": MODEL, "messages": blocks, **change}).encode(), tokenizer)


BROKEN = {"id": "1", "function": {"name": "f", "arguments": "{"}}
DEEP = b"[" * 200_000 + b"]" * 200_000


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"n": 9}, "n", "<= 8"),
        ({"n": 0}, "n", ">= 1"),
        ({"top_p": "wide"}, "top_p", "Expected"),
        ({"logit_bias": [1]}, "logit_bias", "Expected"),
        ({"metadata": 1}, "metadata", "Expected"),
        ({"store": "yes"}, "store", "Expected"),
        ({"top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"modalities": ["audio"]}, "modalities", "text alone"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"temperature": -1}, "temperature", ">= 0"),
        ({"temperature": "hot"}, "temperature", "Expected"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", ">= 1"),
        ({"stop": ["a"] * 5}, "stop", "at most 4"),
        ({"stop": ""}, "stop", "none of them empty"),
        ({"stop": 5}, "stop", "Expected"),
        ({"stop": "x" * 257}, "stop", "256 characters"),
        ({"messages": [{"role": "user"}] * 4097}, "messages", "<= 4096"),
        ({"messages": [5]}, "messages", "messages[0]"),
        ({"response_format": {"schema": {}}}, "response_format", "with a type"),
        ({"response_format": "json"}, "response_format", "with a type"),
        ({"tool_choice": "some"}, "tool_choice", "auto"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "'f'"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "list of tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
            "tools",
            "JSON schema",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]},
            "tools",
            "JSON schema",
        ),
        ({"tools": [{"type": "function"}]}, "tools", "with a name"),
        ({"tools": [5]}, "tools", "Expected"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
            "messages[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "function_call": {}}]},
            "messages",
            "function_call",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}],
                    }
                ]
            },
            "messages",
            "not a JSON",
        ),
        ({"model": None}, "model", "Expected"),
    ],
)
async def test_each_is_refused_by_name(
    tokenizer: Tokenizer, change: dict[str, Any], param: str, words: str, virtual: MockClock
) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        response = await client.post(CHAT, json={**chat("hi"), **change})
        error = response.json()["error"]
        assert (
            response.status_code == 400 and error["param"] == param and words in error["message"]
        ), error
        neutral = {
            "top_p": 1.0,
            "n": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "user": "u",
            "stop": None,
            "response_format": {"type": "text"},
        }
        assert (await client.post(CHAT, json=chat("hi", **neutral))).status_code == 200


async def test_bodies_that_are_none(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer, body_s=5.0) as (_, client):
        await engine.load(0, None)
        for body in (
            b"",
            b"{",
            b"\xff",
            b"[1]",
            b'{"model": "policy", "messages": [{"role": "user", "content": "\\ud800"}]}',
            DEEP[:900],
        ):
            response = await client.post(CHAT, content=body)
            assert response.status_code == 400 and response.json()["error"]["message"], body
        assert (await client.post(CHAT, content=DEEP)).json()["error"]["code"] == "too_large"
        large = chat("x" * LIMITS.body_bytes)
        assert (await client.post(CHAT, json=large)).status_code == 413
        echoed = await client.post(TEXT, json={"model": "other", "prompt": "x"})
        assert echoed.json()["model"] == "other"
        assert (await client.get(CHAT)).status_code == 405
        missing = await client.post("/v1/embeddings")
        assert missing.status_code == 404 and missing.json()["error"]["code"] == "no_route"

        async def slow() -> AsyncIterator[bytes]:
            yield b"{"
            await trio.sleep(6)
            yield b"}"

        response = await client.post(CHAT, content=slow())
        assert response.status_code == 408 and response.json()["error"]["code"] == "too_slow"


async def test_an_answer_does_not_repeat_all_of_what_was_sent(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine, long = scripted(Says(say("x"))), "x" * 50_000
    async with opened(engine, tokenizer, strict=True) as (_, client):
        await engine.load(0, None)
        role = {"messages": [{"role": long, "content": ""}]}
        for change in ({"model": long}, {long: 1}, {"tool_choice": long}, role):
            response = await client.post(CHAT, json={**chat("hi"), **change})
            assert response.status_code in (400, 404) and len(response.content) < 5000


async def test_json_of_too_many_items_is_a_sentence(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """In the request, in the arguments of a call, and where commas are escaped there."""
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        many = '{"a": [' + ",".join(["1"] * (LIMITS.items + 2)) + "]}"
        called = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
        called["tool_calls"][0]["function"]["arguments"] = many  # type: ignore[index]
        bodies = [
            json.dumps(chat("hi", tools=[json.loads(many)])),
            json.dumps(chat("hi", called)),
            json.dumps(chat("hi", called)).replace("1, 1", "1\\u002c1"),
        ]
        for body in bodies:
            response = await client.post(CHAT, content=body)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["code"] in ("too_many_items", "too_large")


async def test_fields_that_are_null_are_not_there(tokenizer: Tokenizer, virtual: MockClock) -> None:
    """Clients send back what they were sent; what they add is null, or a list of nothing."""
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        back = {"role": "assistant", "content": None, "audio": None, "x": None, "annotations": []}
        assert (await client.post(CHAT, json=chat("hi", back))).status_code == 200


def test_deep_json_is_a_sentence() -> None:
    for body in (
        DEEP,
        b'{"model": "m", "messages": [' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"]}",
    ):
        for dialect in every_dialect():
            with pytest.raises(GatewayError):
                dialect.read(body, LIMITS)


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"top_p": 0.9}, "top_p", "must be 1"),
        ({"n": 2}, "n", "must be 1"),
        ({"presence_penalty": 1}, "presence_penalty", "must be 0"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "must be true"),
        ({"top_logprobs": 2}, "top_logprobs", "must be 0"),
        ({"top_k": 5}, "top_k", "left out"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "does not know 'reasoning_effort'"),
        ({"tool_choice": "required"}, "tool_choice", "'none'"),
        ({"response_format": {"type": "json_object"}}, "response_format", "grammar"),
        ({"guided_json": {}}, "guided_json", "does not know"),
        ({"model": "other"}, "model", "no model 'other'"),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages", "mood"),
    ],
)
async def test_strict_parameters_are_refused_by_name(
    tokenizer: Tokenizer, change: dict[str, Any], param: str, words: str, virtual: MockClock
) -> None:
    """And without `agent.strict_parameters` each is taken, and named in a header."""
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer, strict=True) as (_, client):
        await engine.load(0, None)
        response = await client.post(CHAT, json={**chat("hi"), **change})
        error = response.json()["error"]
        assert response.status_code in (400, 404) and error["param"] == param, error
        assert words in error["message"]
        neutral = {"top_p": 1.0, "n": 1, "store": False, "seed": 3, "temperature": 0.5}
        assert (await client.post(CHAT, json=chat("hi", **neutral))).status_code == 200
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        response = await client.post(CHAT, json={**chat("hi"), **change})
        assert response.status_code == 200, response.text
        named = response.headers.get("x-ignored", "")
        if param in ("model", "n"):
            assert named == "" and response.json()["model"] == change.get("model", MODEL)
        else:
            assert named == ("messages.mood" if param == "messages" else param)


async def test_names_of_parameters_cannot_forge_a_header_or_fill_the_log(
    tokenizer: Tokenizer, virtual: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        forged = {"a\r\nx-evil: 1": 1, "é": 1, "x" * 99: 1, "fine": 1}
        for _ in range(2):
            response = await client.post(CHAT, json=chat("hi", **forged))
            assert response.headers["x-ignored"] == "?, fine"
            assert "x-evil" not in response.headers
        warned = [record.getMessage() for record in caplog.records]
        assert len(warned) == 4, "one warning each"
        many = {f"p{n}": n for n in range(500)}
        response = await client.post(CHAT, json=chat("hi", **many))
        assert response.status_code == 200 and len(response.headers["x-ignored"]) < 300
        warned = [record.getMessage() for record in caplog.records]
        assert len(warned) == 64 and not any("\n" in line for line in warned)


async def test_a_template_that_refuses_is_a_sentence(tmp_path: Path, virtual: MockClock) -> None:
    write_chat(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% if messages[0].content == 'hi' %}{{ raise_exception('system last') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    engine = scripted(Says(say("x")))
    async with opened(engine, Tokenizer(tmp_path, chat=True)) as (coordinator, client):
        await engine.load(0, None)
        response = await client.post(CHAT, json=chat("hi"))
        assert response.status_code == 400 and "system last" in response.json()["error"]["message"]
    assert coordinator.asks == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"echo": True}, "put the prompt before it yourself"),
        ({"suffix": "x"}, "knows no text behind it"),
        ({"best_of": 3, "n": 2}, "must be n"),
        ({"prompt": ["a", "b"]}, "a call for each"),
        ({"prompt": [[1], [2]]}, "a call for each"),
    ],
)
def test_what_completions_cannot_do_is_refused_with_what_to_do(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(GatewayError, match=words) as refused:
        completions.read(json.dumps({"model": MODEL, "prompt": "a", **change}).encode(), LIMITS)
    assert refused.value.status == 400 and refused.value.param in change


def test_what_asks_for_nothing_is_not_refused() -> None:
    """A client may send every parameter that it has, with a value that changes nothing."""
    empty = {"echo": False, "suffix": "", "best_of": 2, "n": 2, "prompt": [[7, 8]]}
    body = json.dumps({"model": MODEL, **empty}).encode()
    assert completions.read(body, LIMITS).prompt == [7, 8]
    asked = {"messages": [{"role": "user", "content": "a"}], "mcp_servers": []}
    body = json.dumps({"model": MODEL, "max_tokens": 5, **asked}).encode()
    assert anthropic_messages.read(body, LIMITS).budget == 5


async def test_batches_are_refused_in_the_form_of_their_dialect(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (_, client):
        base = "/sessions/r1-1/v1"
        for path, form in (
            (f"{base}/messages/batches", "error"),
            (f"{base}/messages/batches/b1", "error"),
            (f"{base}/batches", None),
            (f"{base}/responses/resp_1", None),
            (f"{base}/embeddings", None),
            (f"{base}/v1/chat/completions", None),  # a base URL with /v1 too many
            ("/sessions/r1-1/messages", None),
        ):
            answer = await client.post(path, json={})
            assert answer.status_code == 404 and answer.json().get("type") == form, path
            assert "nothing at this path" in answer.json()["error"]["message"]


FORM = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("dialect", "asked", "name"),
    [
        (chat_calls, {"response_format": FORM}, "response_format"),
        (chat_calls, {"guided_json": FORM}, "guided_json"),
        (responses, {"text": {"format": FORM}}, "text.format"),
        (anthropic_messages, {"output_config": {"format": FORM}}, "output_config.format"),
        (anthropic_messages, {"output_format": FORM}, "output_format"),
    ],
)
def test_a_form_of_the_reply_is_not_enforced_and_that_is_said(
    dialect: Any, asked: dict[str, Any], name: str
) -> None:
    """So that an agent whose client asks for JSON trains as it is."""
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": MODEL, "max_tokens": 9, "messages": messages, **asked}
    if dialect is responses:
        body = {"model": MODEL, "input": "hi", **asked}
    sent = json.dumps(body).encode()
    assert dialect.read(sent, LIMITS).ignored == (name,) and name in FORMS
    with pytest.raises(GatewayError) as refused:
        dialect.read(sent, STRICT)
    assert refused.value.param == name.partition(".")[0]
