"""Replies as they were sampled, where a chat template drops what was thought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from gateway_world import CONTEXT, Says, chat, ids, opened, say, scripted, write_chat
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from asyncrl.agents.gateway.conversation import Conversation
from asyncrl.agents.gateway.tools import ToolCall
from asyncrl.tasks.text import Tokenizer

CHAT = "/sessions/r1-1/v1/chat/completions"
DROPS = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>' }}{{ call.function | tojson }}{{ '</tool_call>' }}
{%- endfor -%}
<|end|>{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
"""Thoughts are dropped, as Qwen3 does it with all but the last."""
THOUGHT = "<think>7 or 8?</think>7"
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def drops(folder: Path, template: str = DROPS) -> Tokenizer:
    write_chat(folder)
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer(folder, chat=True)


async def reply(client: httpx2.AsyncClient, *messages: Any, **more: Any) -> dict[str, Any]:
    response = await client.post(CHAT, json=chat(*messages, **more))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["choices"][0]["message"]
    return found


async def test_a_template_drops_thoughts_and_as_sampled_keeps_them(
    tmp_path: Path, virtual: MockClock
) -> None:
    for as_sampled, second in (
        (False, "[user]a[assistant]7<|end|>[user]b<|end|>[assistant]"),
        (True, f"[user]a[assistant]{THOUGHT}<|end|>[user]b<|end|>[assistant]"),
    ):
        says = Says(say(THOUGHT), say("x"), say("y"))
        engine = scripted(says)
        async with opened(engine, drops(tmp_path), as_sampled=as_sampled) as (_, client):
            await engine.load(0, None)
            first = await reply(client, "a")
            assert (first["content"], first["reasoning_content"]) == ("7", "7 or 8?")
            then = await reply(client, "a", first, "b")
            await reply(client, "a", first, "b", then, "c")
        asked = [text.replace("a<|end|>", "a", 1) for text in says.asked()]
        assert asked[0] == "[user]a[assistant]" and asked[1] == second
        assert asked[2] == f"{second}x<|end|>[user]c<|end|>[assistant]"


async def test_its_tokens_are_those_that_were_sampled_and_not_tokenized_anew(
    tmp_path: Path, virtual: MockClock
) -> None:
    """Also of a reply that was cut at its length, or came back with other white space; one that was
    edited is the template's."""
    says = Says(say("  one two "), say("x"))
    engine = scripted(says)
    async with opened(engine, drops(tmp_path), as_sampled=True) as (_, client):
        await engine.load(0, None)
        first = await reply(client, "a", max_tokens=5)
        assert first["content"] == "  one"
        await reply(client, "a", {"role": "assistant", "content": "one"}, "b")
        await reply(client, "a", {"role": "assistant", "content": "two"}, "b")
    start = ids("[user]a$[assistant]")
    assert says.requests[1].ids.tolist() == [*start, *ids("  one$[user]b$[assistant]")]
    assert says.requests[2].ids.tolist() == [*start, *ids("two$[user]b$[assistant]")]


async def test_a_call_of_a_tool_is_a_reply_too(tmp_path: Path, virtual: MockClock) -> None:
    call = (
        '<think>add</think><tool_call>{"name": "add",  "arguments": {"b": 2, "a": 1}}</tool_call>'
    )
    says = Says(say(call), say("3"))
    engine = scripted(says)
    async with opened(engine, drops(tmp_path), as_sampled=True) as (_, client):
        await engine.load(0, None)
        first = await reply(client, "a", tools=[ADD])
        (made,) = first["tool_calls"]
        result = {"role": "tool", "tool_call_id": made["id"], "content": "3"}
        await reply(client, "a", first, result, tools=[ADD])
        await reply(client, "a", first, result, tools=[])
    kept = ids(f"[user]a$[assistant]{call}$[tool]3$[assistant]")
    assert says.requests[1].ids.tolist()[-len(kept) :] == kept
    assert says.requests[2].ids.tolist()[-len(kept) :] != kept, (
        "what is offered is part of the conversation"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[1] and 'think' not in messages[1].content %}"
        "{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}!",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}!",
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}!",
    ],
    ids=["refuses the mark", "says it twice", "drops replies"],
)
async def test_a_template_that_cannot_be_told_apart_renders_all(
    tmp_path: Path, virtual: MockClock, template: str
) -> None:
    says = Says(say(THOUGHT))
    engine = scripted(says)
    tokenizer = drops(tmp_path, template)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": THOUGHT}]
    messages.append({"role": "user", "content": "b"})
    async with opened(engine, tokenizer, as_sampled=True) as (_, client):
        await engine.load(0, None)
        if "raise" not in template:
            await reply(client, "a")
        await reply(client, *messages)
    assert says.requests[-1].ids.tolist() == tokenizer.ids(tokenizer.render(messages))


async def test_a_conversation_that_does_not_fit_is_a_sentence(
    tmp_path: Path, virtual: MockClock
) -> None:
    engine = scripted(Says(say("x")))
    async with opened(engine, drops(tmp_path), as_sampled=True) as (_, client):
        await engine.load(0, None)
        first = await reply(client, "a")
        response = await client.post(CHAT, json=chat("a", first, "b" * CONTEXT))
        error = response.json()["error"]
        assert response.status_code == 400 and error["code"] == "context_length_exceeded"


MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.sampled_from("ab")}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.sampled_from("ab")}),
)


@given(first=st.lists(MESSAGE, max_size=4), second=st.lists(MESSAGE, max_size=4))
def test_digests_are_those_of_equal_conversations(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    one = Conversation([*first, {"role": "assistant", "content": " c "}], [])
    other = Conversation(second, []).replied(["c"])
    assert ([next(one.replies())[1]] == other) == (first == second)


def test_a_call_that_is_too_deep_is_no_reply_to_go_on_from() -> None:
    deep = ToolCall("f", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    assert Conversation([], []).replied([deep]) == []
    flat = ToolCall("f", json.dumps({"b": 1, "a": 2}))
    assert Conversation([], []).replied([flat])
