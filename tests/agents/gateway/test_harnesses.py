"""Claude Code and Codex, as they call: sessions in the form that Claude Code 2.1.197 and Codex
0.171.0 had at this gateway, with shorter texts, in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_world import Says, ids, opened, say, scripted, write_chat
from trio.testing import MockClock

from asyncrl.tasks.text import Tokenizer

MESSAGES, RESPONSES = "/sessions/r1-1/v1/messages?beta=true", "/sessions/r1-1/v1/responses"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_chat(tmp_path_factory.mktemp("model"))


def call(name: str, arguments: dict[str, Any]) -> str:
    called = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{called}\n</tool_call>"


def events(stream: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: ")]


CACHED = {"cache_control": {"type": "ephemeral"}}
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24",
    "x-app": "cli",
    "x-stainless-retry-count": "0",
    "x-asyncrl-role": "coder",
}


def claude_code(*later: dict[str, Any]) -> dict[str, Any]:
    """A request of Claude Code: blocks of the system, a reminder, and a system's message amid the
    chat."""
    shell = {"type": "object", "properties": {"command": {"type": "string"}}}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **shell}
    return {
        "model": "policy",
        "max_tokens": 32_000,
        "stream": True,
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "system": [
            {"type": "text", "text": "cc_version=2.1.197;"},
            {"type": "text", "text": "You are an agent.", **CACHED},
        ],
        "tools": [
            {"name": "Bash", "description": "Run.", "input_schema": schema},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\nToday\n</system-reminder>"},
                    {"type": "text", "text": "Say hello", **CACHED},
                ],
            },
            {"role": "system", "content": "Types of agents: Explore."},
            *later,
        ],
    }


async def test_claude_code_calls_a_tool_and_goes_on(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    bash = call("Bash", {"command": "echo hi"})
    says = Says(say(bash), say("Done."))
    engine = scripted(says, chunk_tokens=16)
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        counts = MESSAGES.replace("messages", "messages/count_tokens")
        asked = {k: v for k, v in claude_code().items() if k not in ("stream", "max_tokens")}
        counted = (await client.post(counts, json=asked, headers=CLAUDE_HEADERS)).json()
        first = await client.post(MESSAGES, json=claude_code(), headers=CLAUDE_HEADERS)
        assert first.status_code == 200, first.text
        start = next(e for e in events(first.text) if e["type"] == "content_block_start")
        delta = next(e for e in events(first.text) if e["type"] == "content_block_delta")
        used = start["content_block"] | {"input": json.loads(delta["delta"]["partial_json"])}
        result = {"tool_use_id": used["id"], "type": "tool_result", "is_error": False, **CACHED}
        later = [
            {"role": "assistant", "content": [used]},
            {"role": "user", "content": [result | {"content": [{"type": "text", "text": "hi"}]}]},
        ]
        second = await client.post(MESSAGES, json=claude_code(*later), headers=CLAUDE_HEADERS)
        assert second.status_code == 200, second.text
    assert counted["input_tokens"] == len(says.requests[0].ids)
    assert first.headers["x-ignored"].split(", ") == [
        *("metadata", "thinking", "context_management", "output_config.effort"),
        "tools.web_search_20250305",
    ]
    context, sampled = says.requests[0].ids.tolist(), ids(bash)
    assert says.requests[1].ids.tolist()[: len(context + sampled)] == context + sampled
    assert says.asked()[1].endswith("[tool]hi<|end|>[assistant]")
    assert events(second.text)[-2]["delta"]["stop_reason"] == "end_turn"
    assert [ask.role for ask in coordinator.asks] == ["coder", "coder"]


def codex(*later: dict[str, Any]) -> dict[str, Any]:
    """A request of Codex, with a tool that takes a patch as a text."""
    command = {"type": "object", "properties": {"cmd": {"type": "string"}}}
    patch = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    function = {"type": "function", "strict": False, "description": "Run."}
    return {
        "model": "policy",
        "instructions": "You are Codex.",
        "stream": True,
        "store": False,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a2",
        "client_metadata": {"turn_id": "01a2"},
        "tools": [
            {**function, "name": "exec_command", "parameters": command},
            {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": patch},
            {"type": "namespace", "name": "multi_agent_v1", "tools": []},
            {"type": "web_search", "external_web_access": True},
        ],
        "input": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "developer",
                "content": [{"type": "input_text", "text": "<skills>"}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Say hello"}],
            },
            *later,
        ],
    }


async def test_codex_runs_a_command_and_applies_a_patch(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """The items of the stream come back as they were, between them thoughts that are encrypted, and
    the contexts go on from the tokens that were sampled."""
    run = call("exec_command", {"cmd": "ls"})
    patch = call("apply_patch", {"input": "*** Begin Patch\n+é"})
    says = Says(say(run), say(patch), say("Done."))
    engine = scripted(says, chunk_tokens=16)
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        items: list[dict[str, Any]] = []
        for output in ("README", "Success.", None):
            answer = await client.post(RESPONSES, json=codex(*items))
            assert answer.status_code == 200, answer.text
            said = events(answer.text)
            done = [e["item"] for e in said if e["type"] == "response.output_item.done"]
            items += [thought, *done]
            if output is not None:
                kind = f"{done[0]['type']}_output"
                items.append({"type": kind, "call_id": done[0]["call_id"], "output": output})
    assert [item["type"] for item in items if "output" not in item and item != thought] == [
        *("function_call", "custom_tool_call", "message"),
    ]
    assert items[4]["input"] == "*** Begin Patch\n+é" and items[4]["name"] == "apply_patch"
    asked = [request.ids.tolist() for request in says.requests]
    for before, after, sampled in zip(asked, asked[1:], (run, patch), strict=False):
        known = before + ids(sampled)
        assert after[: len(known)] == known
    ignored = answer.headers["x-ignored"].split(", ")
    assert {"tools.format", "tools.namespace", "tools.web_search", "reasoning"} <= set(ignored)
    assert said[-1]["type"] == "response.completed"


async def test_what_no_client_sends_is_an_error_of_its_dialects_form(
    tokenizer: Tokenizer, virtual: MockClock
) -> None:
    """A version that does not exist, images, tools that are none: others go on."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    bad_messages: list[dict[str, Any]] = [
        claude_code({"role": "user", "content": [image]}),
        claude_code() | {"tools": [{"name": "Bash", "input_schema": {"type": "array"}}]},
        claude_code() | {"tools": [{"name": "Bash", "input_schema": "none"}]},
    ]
    patch = {"type": "custom", "name": "", "format": {"type": "text"}}
    seen = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    bad_responses = [
        codex({"role": "user", "content": [seen]}),
        codex() | {"tools": [patch]},
        codex() | {"tools": [{"type": "custom", "name": "p", "format": "lark"}]},
        codex({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": 3}),
        codex({"type": "custom_tool_call_output", "output": "x"}),
    ]
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        for body in bad_messages:
            said = await client.post(MESSAGES, json=body, headers=CLAUDE_HEADERS)
            assert (said.status_code, said.json()["type"]) == (400, "error"), body
        for body in bad_responses:
            said = await client.post(RESPONSES, json=body)
            assert said.status_code == 400 and "message" in said.json()["error"], body
        old = CLAUDE_HEADERS | {"anthropic-version": "1999-01-01"}
        said = await client.post(MESSAGES, json=claude_code(), headers=old)
        assert said.status_code == 400 and said.json()["error"]["code"] == "unknown_version"
        assert not coordinator.asks
        assert (await client.post(RESPONSES, json=codex())).status_code == 200
