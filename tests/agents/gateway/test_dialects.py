"""Every dialect over HTTP, in virtual time: the same replies, tokens and refusals in each form.
Bodies are read with the official clients' own types where these are installed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import trio
from gateway_world import CONTEXT, KEY, Says, chat, ids, opened, say, scripted, write_chat
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from trio.testing import MockClock

from asyncrl.agents.gateway.dialects.every_dialect import every_dialect
from asyncrl.bundled.bundled_model import VOCABULARY
from asyncrl.tasks.text import Tokenizer

BASE = "/sessions/r1-1/v1"
CHAT, MESSAGES, RESPONSES = f"{BASE}/chat/completions", f"{BASE}/messages", f"{BASE}/responses"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
FUNCTION = {"name": "add", "description": "a + b", "parameters": SCHEMA}
CALL = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


def strictly(kind: Any, body: Any) -> Any:
    """A body as the client's own type; no field that it needs may be missing or of another type,
    and none may be there that it does not have."""
    found = kind.model_validate(body)
    assert set(unknown(found)) <= {"store"}, "OpenAI's API has it, and its client's type has not"
    return found


def unknown(found: Any) -> Iterator[str]:
    """The fields that a client's type does not have, at any depth."""
    if isinstance(found, list):
        for one in found:
            yield from unknown(one)
    elif hasattr(found, "model_fields_set"):
        yield from found.model_extra or {}
        for name in type(found).model_fields:
            yield from unknown(getattr(found, name))


def anthropic_types() -> Any:
    """The types of the package `anthropic`; None without it."""
    try:
        return importlib.import_module("anthropic.types")
    except ImportError:
        return None


def asked(path: str, *turns: Any, **more: Any) -> dict[str, Any]:
    """A request in the dialect of a path: a text is the user's, a list what came back."""
    if path == CHAT:
        tools = {"tools": [{"type": "function", "function": FUNCTION}]}
        messages: list[Any] = []
        for turn in turns:
            messages += turn if isinstance(turn, list) else [{"role": "user", "content": turn}]
        return {"model": "any-model", "messages": messages, **tools, **more}
    if path == RESPONSES:
        items: list[Any] = []
        for turn in turns:
            items += turn if isinstance(turn, list) else [{"role": "user", "content": turn}]
        return {
            "model": "any-model",
            "input": items,
            "tools": [{"type": "function", **FUNCTION}],
        } | more
    shown = {"name": "add", "description": "a + b", "input_schema": SCHEMA}
    blocks: list[Any] = []
    for turn in turns:
        blocks += turn if isinstance(turn, list) else [{"role": "user", "content": turn}]
    return {"model": "any-model", "max_tokens": 500, "messages": blocks, "tools": [shown], **more}


def back(path: str, body: dict[str, Any], result: str) -> list[Any]:
    """Messages that a client sends back: the reply, and the results of its calls."""
    if path == CHAT:
        message = body["choices"][0]["message"]
        return [
            message,
            *(
                {"role": "tool", "tool_call_id": call["id"], "content": result}
                for call in message.get("tool_calls", [])
            ),
        ]
    if path == RESPONSES:
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": result}
            for call in calls
        ]
        return [*body["output"], *results]
    calls = [block for block in body["content"] if block["type"] == "tool_use"]
    done = [{"type": "tool_result", "tool_use_id": c["id"], "content": result} for c in calls]
    reply = {"role": "assistant", "content": body["content"]}
    return [reply, *([{"role": "user", "content": done}] if done else [])]


def streamed(text: str) -> list[tuple[str, Any]]:
    """The events of a stream, each with its name."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        if lines["data"] != "[DONE]":
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_two_turns_go_on_from_the_tokens_that_were_sampled(
    tokenizer: Tokenizer, virtual: MockClock, path: str
) -> None:
    """In each dialect a reply that came back as the gateway sent it is the very tokens, and the
    contexts of all dialects are the same."""
    says = Says(say(CALL), say("3"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        first = (await client.post(path, json=asked(path, "1+2?"), headers=VERSION)).json()
        more = back(path, first, "3")
        answer = await client.post(path, json=asked(path, "1+2?", more), headers=VERSION)
        assert answer.status_code == 200, answer.text
    sampled, context = ids(CALL), says.requests[0].ids.tolist()
    assert says.requests[1].ids.tolist()[: len(context) + len(sampled)] == context + sampled
    assert says.asked()[1].endswith(f"{CALL}<|end|>[tool]3<|end|>[assistant]")
    assert answer.json()["model"] == "any-model"


async def test_chat_is_what_the_official_client_reads(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say(CALL)), chunk_tokens=1)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        body = (await client.post(CHAT, json=asked(CHAT, "hi"))).json()
        whole = strictly(ChatCompletion, body)
        parts = streamed((await client.post(CHAT, json=asked(CHAT, "hi", stream=True))).text)
    assert whole.choices[0].message.tool_calls[0].function.name == "add"
    for _, part in parts:
        strictly(ChatCompletionChunk, part)


async def test_messages_are_in_anthropics_form(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say(CALL)), chunk_tokens=1)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        body = (await client.post(MESSAGES, json=asked(MESSAGES, "hi"), headers=VERSION)).json()
        stream = await client.post(MESSAGES, json=asked(MESSAGES, "hi", stream=True))
        counted = await client.post(f"{MESSAGES}/count_tokens", json=asked(MESSAGES, "hi"))
    text, call = body["content"]
    assert text == {"type": "text", "text": "I add."}
    assert (call["name"], call["input"]) == ("add", {"a": 1, "b": 2})
    assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "tool_use")
    assert body["usage"]["output_tokens"] == len(ids(f"{CALL}$"))
    assert counted.json() == {"input_tokens": body["usage"]["input_tokens"]}
    parts = streamed(stream.text)
    assert all(name == data["type"] for name, data in parts)
    names = [name for name, _ in parts]
    assert [name for name in names if name != "content_block_delta"] == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    deltas = [data["delta"] for name, data in parts if name == "content_block_delta"]
    assert "".join(d.get("text", "") for d in deltas) == "I add."
    assert json.loads("".join(d.get("partial_json", "") for d in deltas)) == {"a": 1, "b": 2}
    if (types := anthropic_types()) is not None:
        assert strictly(types.Message, body).content[1].name == "add"
        adapter = importlib.import_module("pydantic").TypeAdapter(types.RawMessageStreamEvent)
        for _, data in parts:
            assert not [*unknown(adapter.validate_python(data))]
        strictly(types.MessageTokensCount, counted.json())


async def test_responses_are_in_openais_form(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say(CALL)), chunk_tokens=1)
    stream_event = importlib.import_module("openai.types.responses").ResponseStreamEvent
    adapter = importlib.import_module("pydantic").TypeAdapter(stream_event)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        body = (await client.post(RESPONSES, json=asked(RESPONSES, "hi"))).json()
        stream = await client.post(RESPONSES, json=asked(RESPONSES, "hi", stream=True))
    whole = strictly(Response, body)
    assert whole.output_text == "I add." and whole.status == "completed"
    assert [item.type for item in whole.output] == ["message", "function_call"]
    parts = streamed(stream.text)
    for at, (name, data) in enumerate(parts):
        assert name == data["type"] and data["sequence_number"] == at
        assert set(unknown(adapter.validate_python(data))) <= {"store", "name"}
    [done] = [d for name, d in parts if name == "response.function_call_arguments.done"]
    assert done["name"] == "add"  # openai 2 requires it
    last = strictly(Response, parts[-1][1]["response"])
    assert parts[-1][0] == "response.completed" and last.output_text == "I add."
    joined = [d["delta"] for name, d in parts if name == "response.output_text.delta"]
    assert "".join(joined) == "I add."
    assert [item["arguments"] for item in body["output"][1:]] == ['{"a": 1, "b": 2}']


async def test_a_response_is_followed_by_its_id(tokenizer: Tokenizer, virtual: MockClock) -> None:
    """In its session, unless it is not stored; the same tokens go on."""
    says = Says(say(CALL), say("3"), say("x"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        coordinator.play(2)
        first = (await client.post(RESPONSES, json=asked(RESPONSES, "1+2?"))).json()
        result = back(RESPONSES, first, "3")[-1:]
        after = asked(RESPONSES, result, previous_response_id=first["id"], store=False)
        second = await client.post(RESPONSES, json=after)
        assert second.json()["previous_response_id"] == first["id"]
        for path, name in (
            (RESPONSES, second.json()["id"]),
            (RESPONSES.replace("r1", "r2"), first["id"]),
            (RESPONSES, "resp_1"),
        ):
            lost = await client.post(path, json=asked(RESPONSES, "a", previous_response_id=name))
            assert (
                lost.status_code == 400 and "send all messages" in lost.json()["error"]["message"]
            )
    assert says.asked()[1].endswith(f"{CALL}<|end|>[tool]3<|end|>[assistant]")


@pytest.mark.parametrize("stream", [False, True])
async def test_items_of_earlier_answers_are_named_in_place_of_them(
    tokenizer: Tokenizer, virtual: MockClock, stream: bool
) -> None:
    """As the AI SDK does: the text by its name, the call as it was, or both by name."""
    says = Says(say(CALL), say("3"), say("4"))
    engine = scripted(says)

    async def ask(*turns: Any) -> Any:
        body = asked(RESPONSES, *turns, stream=stream)
        answer = await client.post(RESPONSES, json=body)
        assert answer.status_code == 200, answer.text
        return streamed(answer.text)[-1][1]["response"] if stream else answer.json()

    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        first = await ask("1+2?")
        named = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        result = back(RESPONSES, first, "3")[-1]
        second = await ask("1+2?", [named[0], first["output"][1], result])
        last = [{"type": "item_reference", "id": second["output"][0]["id"]}]
        await ask("1+2?", [*named, result, *last], "And more?")
        lost = asked(RESPONSES, "a", [{"type": "item_reference", "id": "msg_1"}])
        answer = await client.post(RESPONSES, json=lost)
        assert answer.status_code == 400 and "send the item" in answer.json()["error"]["message"]
    chats = [request.ids.tolist() for request in says.requests]
    known = chats[0] + ids(CALL)
    assert chats[1][: len(known)] == known and chats[2][: len(known)] == known
    assert says.asked()[1].endswith(f"{CALL}<|end|>[tool]3<|end|>[assistant]")
    assert says.asked()[2].endswith("[assistant]3<|end|>[user]And more?<|end|>[assistant]")


@pytest.mark.parametrize(
    ("path", "form"), [(CHAT, "openai"), (MESSAGES, "anthropic"), (RESPONSES, "openai")]
)
async def test_garbage_is_an_error_of_the_dialect(
    tokenizer: Tokenizer, virtual: MockClock, path: str, form: str
) -> None:
    """Also without a key, and after the reward; other sessions go on."""
    engine = scripted(Says(say("x")))
    image: Any = {
        CHAT: {"type": "image_url", "image_url": {"url": "data:,"}},
        MESSAGES: {"type": "image", "source": {"type": "base64", "data": ""}},
        RESPONSES: {"type": "input_image", "image_url": "data:,"},
    }[path]
    shown = {"role": "user", "content": [image]}
    good = asked(path, "hi")
    tool: Any = {"name": "f", "input_schema": [], "parameters": [], "type": "function"}
    named = {"type": "object", "properties": {"a": {}}, "required": "a"}
    unmet = {**tool, "input_schema": named, "parameters": named}
    wrong = [
        {**good, "stream": "yes"},
        {**good, "model": 5},
        asked(path, [shown]),
        {**good, "tools": [{**tool, "function": tool}]},
        {**good, "tools": [{"type": "function"}]},
        {**good, "tools": [{**unmet, "function": unmet}]},
        {**good, "temperature": "hot"},
        {k: v for k, v in good.items() if k not in ("messages", "input")},
        asked(path, [{"role": "robot", "content": "a"}]),
        asked(path, [{"role": "user", "content": 5}]),
    ]

    def check(answer: httpx2.Response, status: int) -> None:
        assert answer.status_code == status, answer.text
        body = answer.json()
        assert "Traceback" not in answer.text and len(body["error"]["message"]) > 10
        assert (body.get("type") == "error") == (form == "anthropic")
        types = anthropic_types()
        if types is not None and form == "anthropic" and status != 413:  # it is in no type
            strictly(types.ErrorResponse, body | {"request_id": None})

    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        coordinator.play(2)
        for body in wrong:
            check(await client.post(path, json=body), 400)
        for content in (b"", b"{", b"\xff", b"[" * 5000):
            check(await client.post(path, content=content), 400)
        check(await client.post(path, content=b"x" * (1 << 20)), 413)
        check(await client.post(path, json=good, headers={"authorization": "Bearer x"}), 401)
        check(await client.get(path), 405)
        check(await client.post(path.replace("/v1", "/v2"), json=good), 404)
        other = path.replace("r1", "r7")
        check(await client.post(other, json=good), 404)
        if form == "anthropic":
            check(await client.post(path, json=good, headers={"anthropic-version": "2099"}), 400)
        await client.post("/v1/sessions/r1-1/reward", json={"reward": 1.0})
        check(await client.post(path, json=good), 422)
        assert (await client.post(path.replace("r1", "r2"), json=good)).status_code == 200


async def test_a_key_of_either_header_opens(tokenizer: Tokenizer, virtual: MockClock) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        del client.headers["authorization"]
        for key, status in ((KEY, 200), ("other", 401)):
            for path in (CHAT, MESSAGES, RESPONSES):
                answer = await client.post(path, json=asked(path, "a"), headers={"x-api-key": key})
                assert answer.status_code == status
        raw = [(b"x-api-key", KEY.encode())]
        assert coordinator.sessions.known(raw)
        assert not coordinator.sessions.known([(b"x-api-key", b"other")])


async def test_several_choices_are_calls_of_one_context(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    says = Says(say("one"), say("two"), say("six"))
    engine = scripted(says, chunk_tokens=1)
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        body = (await client.post(CHAT, json=chat("hi", n=3, logprobs=True))).json()
        strictly(ChatCompletion, body)
        said = [choice["message"]["content"] for choice in body["choices"]]
        assert sorted(said) == ["one", "six", "two"]
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert body["usage"]["completion_tokens"] == 12
        more = chat("hi", n=2, stream=True, stream_options={"include_usage": True})
        parts = streamed((await client.post(CHAT, json=more)).text)
        texts = {0: "", 1: ""}
        for _, part in parts[:-1]:
            (choice,) = part["choices"]
            texts[choice["index"]] += choice["delta"].get("content", "")
        assert set(texts.values()) == {"six"} and parts[-1][1]["usage"]["completion_tokens"] == 8
        both = await client.post(f"{BASE}/completions", json={"model": "m", "prompt": "q", "n": 2})
        assert [c["index"] for c in both.json()["choices"]] == [0, 1]
    assert len(coordinator.asks) == 7
    assert len({tuple(request.ids.tolist()) for request in says.requests[:3]}) == 1


async def test_a_choice_that_fails_ends_the_others(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    broken = say("x" * 9)
    broken.ids[5] = VOCABULARY
    engine = scripted(Says(say("x" * 50, pace=1.0), broken, say("y")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        begun = trio.current_time()
        answer = await client.post(CHAT, json=chat("hi", n=2))
        assert answer.status_code == 502 and trio.current_time() - begun < 10
        assert (await client.post(CHAT, json=chat("hi"))).status_code == 200


async def test_what_is_chosen_of_tools_is_shown(tokenizer: Tokenizer, virtual: MockClock) -> None:
    """`none` hides tools, and allowed tools are those that are shown; a call cannot be enforced,
    and a header says so."""
    says = Says(say("x"))
    engine = scripted(says)
    other = {"type": "function", "function": {**FUNCTION, "name": "subtract"}}
    tools = [{"type": "function", "function": FUNCTION}, other]
    named = {"type": "function", "function": {"name": "add"}}
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    anthropic: list[tuple[Any, Any, Any]] = [
        (MESSAGES, {"type": "none"}, (0, "")),
        (MESSAGES, {"type": "any"}, (1, "tool_choice")),
        (MESSAGES, {"type": "tool", "name": "add"}, (1, "tool_choice")),
        (RESPONSES, {"type": "function", "name": "add"}, (1, "tool_choice")),
    ]
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        for choice, (shown, header) in (
            ("auto", (2, "")),
            ("none", (0, "")),
            ("required", (2, "tool_choice")),
            (named, (2, "tool_choice")),
            (only, (1, "")),
        ):
            answer = await client.post(CHAT, json=chat("a", tools=tools, tool_choice=choice))
            assert answer.headers.get("x-ignored", "") == header, choice
            assert says.asked()[-1].count('"description": "a + b"') == shown
        for path, choice, (shown, header) in anthropic:
            answer = await client.post(path, json=asked(path, "a", tool_choice=choice))
            assert answer.status_code == 200, answer.text
            assert answer.headers.get("x-ignored", "") == header, choice
            assert says.asked()[-1].count('"description": "a + b"') == shown


PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "+ a"}}\n</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_has_tools_that_take_a_text(
    tokenizer: Tokenizer, virtual: MockClock, stream: bool
) -> None:
    """A call of one comes in its own form, and goes on, sent back, from the sampled tokens."""
    says = Says(say(PATCH), say("Done."))
    engine = scripted(says)
    patch = {"name": "patch", "description": "Edit.", "format": {"type": "grammar", "grammar": {}}}
    tools = [{"type": "custom", "custom": patch}, {"type": "function", "function": FUNCTION}]
    chosen = {"type": "custom", "custom": {"name": "patch"}}
    more: dict[str, Any] = {"tools": tools, "tool_choice": chosen, "stream": stream}
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        options = {"stream_options": {"include_usage": True}} if stream else {}
        answer = await client.post(CHAT, json=chat("hi", **more, **options))
        assert answer.headers["x-ignored"] == "tools.format, tool_choice"
        if stream:
            parts = [part for _, part in streamed(answer.text)]
            assert [part["usage"] for part in parts[:-1]] == [None] * (len(parts) - 1)
            assert parts[-1]["choices"] == [] and parts[-1]["usage"]["total_tokens"] > 0
            deltas = [choice["delta"] for part in parts for choice in part["choices"]]
            (call,) = [one for delta in deltas for one in delta.get("tool_calls", [])]
            assert call.pop("index") == 0
        else:
            whole = strictly(ChatCompletion, answer.json())
            (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
            assert whole.choices[0].message.tool_calls[0].custom.input == "+ a"
        assert (call["type"], call["custom"]) == ("custom", {"name": "patch", "input": "+ a"})
        reply = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        assert (await client.post(CHAT, json=chat("hi", reply, result, **more))).is_success
    context = says.requests[0].ids.tolist()
    assert says.requests[1].ids.tolist()[: len(context + ids(PATCH))] == context + ids(PATCH)
    assert says.asked()[1].endswith("[tool]ok<|end|>[assistant]")


async def test_a_refusal_in_the_history_is_read_as_what_was_said(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    says = Says(say("x"))
    engine = scripted(says)
    part = {"type": "refusal", "refusal": "No."}
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        for path, reply in (
            (CHAT, {"role": "assistant", "content": None, "refusal": "No."}),
            (CHAT, {"role": "assistant", "content": [part]}),
            (RESPONSES, {"role": "assistant", "content": [part]}),
        ):
            answer = await client.post(path, json=asked(path, "hi", [reply], "why?"))
            assert answer.status_code == 200, answer.text
    assert all(
        found.endswith("[assistant]No.<|end|>[user]why?<|end|>[assistant]")
        for found in says.asked()
    )


async def test_a_choice_of_a_tool_that_is_not_here_has_no_effect(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """OpenAI's own tools, alone or among those that are allowed."""
    engine = scripted(Says(say("x")))
    function = {"type": "function", "name": "add"}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}, function]}
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        for choice, named in (({"type": "web_search"}, "tool_choice"), (allowed, "")):
            answer = await client.post(RESPONSES, json=asked(RESPONSES, "a", tool_choice=choice))
            assert answer.status_code == 200, answer.text
            assert answer.headers.get("x-ignored", "") == named


async def test_ordinary_parameters_of_every_dialect_are_taken(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    engine = scripted(Says(say("one two", ends="hang"), say("one two")))
    given: dict[str, dict[str, Any]] = {
        CHAT: {
            "temperature": 0.7,
            "top_p": 0.95,
            "frequency_penalty": 0.1,
            "presence_penalty": 0.1,
            "logit_bias": {"5": 1},
            "seed": 1,
            "parallel_tool_calls": False,
            "reasoning_effort": "low",
            "metadata": {"a": "b"},
            "store": True,
            "service_tier": "auto",
            "prompt_cache_key": "k",
            "top_logprobs": 3,
            "chat_template_kwargs": {"a": 1},
        },
        MESSAGES: {
            "temperature": 1.0,
            "top_p": 0.9,
            "top_k": 5,
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
        RESPONSES: {
            "temperature": 0.5,
            "top_p": 0.5,
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low"},
            "metadata": {"a": "b"},
            "service_tier": "auto",
            "truncation": "auto",
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
        },
    }
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        stopped = await client.post(MESSAGES, json=asked(MESSAGES, "a", stop_sequences=[" t"]))
        assert (stopped.json()["stop_reason"], stopped.json()["stop_sequence"]) == (
            "stop_sequence",
            " t",
        )
        for path, parameters in given.items():
            answer = await client.post(path, json=asked(path, "a", **parameters))
            assert answer.status_code == 200, answer.text
            named = answer.headers["x-ignored"].split(", ")
            assert sorted(named) == sorted(parameters), path
        hosted = {"tools": [{"type": "web_search"}]}
        answer = await client.post(RESPONSES, json=asked(RESPONSES, "a") | hosted)
        assert answer.headers["x-ignored"] == "tools.web_search"
        large = asked(MESSAGES, "a", max_tokens=64_000)
        assert (await client.post(MESSAGES, json=large)).status_code == 200
        models = (await client.get(f"{BASE}/models/gpt-x")).json()
        assert models["id"] == "gpt-x"


def test_every_dialect_has_a_path_of_its_own() -> None:
    paths = [dialect.path for dialect in every_dialect()]
    assert sorted(paths) == ["/chat/completions", "/completions", "/messages", "/responses"]
    assert CONTEXT > 0


async def test_a_call_names_its_role(tokenizer: Tokenizer, virtual: MockClock) -> None:
    """By its metadata or a header, in each dialect; the context has nothing of it. One that is no
    name is refused in the dialect's form, and others are not touched."""
    says = Says(say("x"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        for path in (CHAT, MESSAGES, RESPONSES):
            planned = asked(path, "hi", metadata={"role": "planner"})
            answer = await client.post(path, json=planned)
            assert answer.status_code == 200 and "x-ignored" not in answer.headers
            both = {"x-asyncrl-role": "tool.user-2"}
            assert (await client.post(path, json=planned, headers=both)).status_code == 200
            for role in (7, ["a"], "", "two words", "x" * 65, "é"):
                bad = await client.post(path, json=asked(path, "hi", metadata={"role": role}))
                assert bad.status_code == 400, role
                assert "a role is 1 to 64" in bad.json()["error"]["message"]
                assert bad.json()["error"]["param"] == "metadata.role"
            wrong = {"x-asyncrl-role": "x" * 65}
            assert (await client.post(path, json=asked(path, "hi"), headers=wrong)).is_client_error
    assert [ask.role for ask in coordinator.asks] == ["planner", "tool.user-2"] * 3
    assert len(set(says.asked())) == 1
