"""The client's side of `sdk_calls.py`: 60 ordinary calls of each dialect by the official clients,
each answer checked against the client's own types. It needs these packages and nothing of asyncrl.

Usage: python bench/sdk_calls_client.py BASE_URL KEY [SHAPES.json]

The file gets the shape of each answer: its fields and their kinds, and the order of a stream.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MODEL = "any-model"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "add", "description": "a + 1", "parameters": SCHEMA}
USER = {"role": "user", "content": "Hi"}
OWN = {"reasoning_content", "store", "name"}
"""Fields that OpenAI's types do not have: thoughts, as other servers have them, what OpenAI's own
API repeats of a request, and the name of a called function, which one release requires."""

CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
CHAT: list[dict[str, Any]] = [
    {},
    {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "Hi."}, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    {"max_tokens": 8},
    {"max_completion_tokens": 8, "stop": ["l"]},
    {"temperature": 0.7, "top_p": 0.95, "seed": 7},
    {"n": 2},
    {"logprobs": True, "top_logprobs": 0},
    {"tools": CHAT_TOOLS, "parallel_tool_calls": False},
    {"tools": CHAT_TOOLS, "tool_choice": "required"},
    {
        "tools": CHAT_TOOLS,
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
    },
    {"metadata": {"role": "planner"}, "store": False, "user": "me"},
    {"response_format": {"type": "text"}, "presence_penalty": 0.5, "reasoning_effort": "low"},
]
TEXT: list[dict[str, Any]] = [
    {},
    {"prompt": ["Hi"]},
    {"prompt": [72, 105]},
    {"max_tokens": 1},
    {"max_tokens": 8, "stop": "l"},
    {"stop": ["l", "x"]},
    {"temperature": 0.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"n": 2},
    {"logprobs": 0},
    {"logprobs": 1},
    {"seed": 7},
    {"user": "me"},
    {"best_of": 1},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5},
]
SHOWN = [{"name": "add", "description": "a + 1", "input_schema": SCHEMA}]
USED = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
CACHED = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}


def _result(content: Any) -> list[dict[str, Any]]:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    return [USER, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [block]}]


MESSAGES: list[dict[str, Any]] = [
    {},
    {"system": "Be brief."},
    {"system": [CACHED]},
    {"messages": [USER, {"role": "assistant", "content": "Hi."}, USER]},
    {"messages": [{"role": "user", "content": [CACHED]}]},
    {"max_tokens": 1},
    {"stop_sequences": ["l"]},
    {"extra_body": {"temperature": 0.7, "top_p": 0.9, "top_k": 5}},
    {"tools": SHOWN},
    {"tools": SHOWN, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    {"tools": SHOWN, "messages": _result("2")},
    {"tools": SHOWN, "messages": _result([{"type": "text", "text": "2"}])},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
    {"metadata": {"user_id": "me"}, "service_tier": "auto"},
    {"extra_headers": {"anthropic-beta": "interleaved-thinking-2025-05-14"}},
]
RESPONSE_TOOLS = [{"type": "function", **FUNCTION, "strict": False}]
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
CALLED = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
DONE = {"type": "function_call_output", "call_id": "c1", "output": "2"}
PATCHED = {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** x"}
RESPONSES: list[dict[str, Any]] = [
    {},
    {"input": [USER]},
    {"instructions": "Be brief."},
    {"input": [{"type": "message", "role": "developer", "content": "Be brief."}, USER]},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
    {"max_output_tokens": 16},
    {"temperature": 0.7, "top_p": 0.9},
    {"tools": RESPONSE_TOOLS, "parallel_tool_calls": False},
    {"tools": RESPONSE_TOOLS, "tool_choice": "required"},
    {"tools": RESPONSE_TOOLS, "input": [USER, CALLED, DONE]},
    {"store": False, "include": ["reasoning.encrypted_content"]},
    {"reasoning": {"effort": "low", "summary": "auto"}},
    {"tools": [PATCH]},
    {
        "tools": [PATCH],
        "input": [
            *(USER, PATCHED),
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
        ],
    },
    {"metadata": {"role": "planner"}, "text": {"format": {"type": "text"}}, "truncation": "auto"},
]


def checked(found: Any) -> int:
    """Check an answer, or a part of one, against its own type. Raises ValueError."""
    said = found.to_dict(mode="json")
    if said.get("object") == "text_completion":  # OpenAI's API streams null, which its type lacks
        for choice in said["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
    again = type(found).model_validate(said)
    if unknown := sorted(set(_unknown(again)) - OWN):
        raise ValueError(f"{type(found).__name__} has fields that are not the client's: {unknown}")
    return 1


def _unknown(found: Any) -> Iterator[str]:
    """The fields that a type does not have, at any depth."""
    if isinstance(found, list | tuple):
        for one in found:
            yield from _unknown(one)
    elif hasattr(found, "model_fields_set"):
        yield from found.model_extra or {}
        for name in type(found).model_fields:
            yield from _unknown(getattr(found, name))


def fields(found: Any, at: str = "") -> Iterator[str]:
    """The fields of an answer and their kinds, such as `choices[].index: int`; null is none."""
    match found:
        case dict() if at.endswith("top_logprobs[]"):  # by the token's text
            yield from fields([*found.values()], at)
        case dict():
            for name, value in found.items():
                yield from fields(value, f"{at}.{name}" if at else name)
        case list():
            for one in found:
                yield from fields(one, f"{at}[]")
        case None:
            return
        case _:
            yield f"{at}: {type(found).__name__}"


def shape(parts: list[Any]) -> dict[str, list[str]]:
    """The fields of an answer or of a stream's parts, and the order of the parts' types."""
    said = [part.to_dict(mode="json") for part in parts]
    found = {f"{one.get('type', '')} {field}".strip() for one in said for field in fields(one)}
    order = [name for name, _ in itertools.groupby(one.get("type", "") for one in said)]
    return {"fields": sorted(found), "order": order}


class Tally:
    """Counts the calls of each dialect, and says what was wrong with one."""

    def __init__(self) -> None:
        self.good: dict[str, int] = {}
        self.parts = 0
        self.wrong: list[str] = []
        self.shapes: dict[str, dict[str, list[str]]] = {}

    def keep(self, dialect: str, asked: dict[str, Any], way: str, parts: list[Any]) -> int:
        """Keep the shape of an answer, and check it."""
        self.shapes[f"{dialect} {way} {json.dumps(asked, sort_keys=True)}"] = shape(parts)
        return sum(checked(part) for part in parts)

    def count(self, dialect: str, asked: object, call: Callable[[], int]) -> None:
        """Make one call, which returns the number of checked parts."""
        self.good.setdefault(dialect, 0)
        try:
            self.parts += call()
            self.good[dialect] += 1
        except Exception as error:  # noqa: BLE001 it is one call's, and the others are made
            self.wrong.append(f"{dialect} {asked}: {type(error).__name__}: {error}")


def both(
    create: Callable[[Any], Any],
    one: Any,
    other: Callable[[], Any],
    asked: dict[str, Any],
    tally: Tally,
    dialect: str,
) -> None:
    """A call in four ways: whole and as a stream, by the blocking client `one` and an async `other`
    one; `create` is what makes a call of either."""

    def whole() -> int:
        return tally.keep(dialect, asked, "whole", [create(one)(**asked)])

    def stream() -> int:
        return tally.keep(dialect, asked, "stream", [*create(one)(**asked, stream=True)])

    async def whole_later() -> int:
        async with other() as client:
            return checked(await create(client)(**asked))

    async def stream_later() -> int:
        async with other() as client:
            parts = [part async for part in await create(client)(**asked, stream=True)]
            return sum(checked(part) for part in parts)

    tally.count(dialect, asked, whole)
    tally.count(dialect, asked, stream)
    tally.count(dialect, asked, lambda: asyncio.run(whole_later()))
    tally.count(dialect, asked, lambda: asyncio.run(stream_later()))


def of_openai(base: str, key: str, tally: Tally) -> None:
    """Chat, completions and responses by the package `openai`."""
    openai = importlib.import_module("openai")
    one = openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0)
    for uses, given, dialect, place in (
        (CHAT, {"messages": [USER]}, "chat", "chat.completions"),
        (TEXT, {"prompt": "Hi"}, "completions", "completions"),
        (RESPONSES, {"input": "Hi"}, "responses", "responses"),
    ):
        for use in uses:

            def create(client: Any, place: str = place) -> Any:
                for name in place.split("."):
                    client = getattr(client, name)
                return client.create

            def other() -> Any:
                return openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0)

            both(create, one, other, {"model": MODEL, **given, **use}, tally, dialect)


def of_anthropic(base: str, key: str, tally: Tally) -> None:
    """Messages by the package `anthropic`."""
    anthropic = importlib.import_module("anthropic")
    one = anthropic.Anthropic(base_url=base, auth_token=key, max_retries=0)

    def other() -> Any:
        return anthropic.AsyncAnthropic(base_url=base, auth_token=key, max_retries=0)

    for use in MESSAGES:
        asked = {"model": MODEL, "max_tokens": 64, "messages": [USER], **use}
        both(lambda client: client.messages.create, one, other, asked, tally, "messages")


def of_agents(base: str, key: str, tally: Tally) -> None:
    """30 runs of an agent of the package `openai-agents`, of two calls each: one to a tool."""
    agents, openai = importlib.import_module("agents"), importlib.import_module("openai")
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    async def run(kind: Any) -> int:
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0) as client:
            model = kind(model=MODEL, openai_client=client)
            agent = agents.Agent(name="adder", instructions="Add.", tools=[add], model=model)
            done = await agents.Runner.run(agent, "1 + 1?")
        assert len(done.raw_responses) == 2 and done.final_output, done
        return 2

    for number in range(30):
        kind = agents.OpenAIResponsesModel if number % 2 else agents.OpenAIChatCompletionsModel
        tally.count("agents", kind.__name__, lambda kind=kind: asyncio.run(run(kind)))


def main(base: str, key: str, shapes: str = "") -> int:
    """Make the calls of the clients that are installed."""
    tally = Tally()
    for package, calls in (
        ("openai", of_openai),
        ("anthropic", of_anthropic),
        ("agents", of_agents),
    ):
        if importlib.util.find_spec(package) is None:
            print(f"{package}: not installed here")
            continue
        calls(base, key, tally)
    for dialect, good in tally.good.items():
        print(f"{dialect}: {good} good")
    print(f"{tally.parts} answers and parts of streams were as the clients' types have them")
    if shapes:
        Path(shapes).write_text(json.dumps(tally.shapes))
    for sentence in tally.wrong[:20]:
        print("WRONG", sentence[:600])
    return int(bool(tally.wrong))


if __name__ == "__main__":
    import importlib.util

    raise SystemExit(main(*sys.argv[1:]))
