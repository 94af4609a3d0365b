"""Forms of calls: what each family's chat template writes is read back, whole and in pieces, and
the form is found by the template."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_templates import FAMILIES, QWEN3, rendered
from gateway_world import CONTEXT, Says, chat, opened, say, scripted
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from trio.testing import MockClock

from asyncrl.agents.gateway.formats import harmony
from asyncrl.agents.gateway.formats.every_format import every_format, looks_like_a_call
from asyncrl.agents.gateway.formats.thoughts import Thoughts
from asyncrl.agents.gateway.formats.tool_format import ToolFormat
from asyncrl.agents.gateway.inner_call import calls_in, text_of, thoughts_of
from asyncrl.agents.gateway.model_format import ModelFormat, format_of
from asyncrl.agents.gateway.tools import Delta, PlainText, Thought, ToolParser
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.tasks.text import Tokenizer

DRAWS = 1000
CHAT = "/sessions/r1-1/v1/chat/completions"
FORMS = {form.name: form for form in every_format()}
families = pytest.mark.parametrize("family", FAMILIES)
TEXTS = [
    "",
    "a",
    "5",
    "true",
    "null",
    'say "hi"',
    "it's",
    "two\nlines\n",
    "\ttab\\back",
    "é😀漢字",
    "{not: json}",
    "[1, 2",
    "a < b > c & d",
    "</think> x",
    "  spaces  ",
    "#!/bin/sh\necho 'a' && exit 1\n",
    '{"a": [1, "b"]}',
    "x" * 300,
]


class Drawn:
    """Values by a seed, each with its schema."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> tuple[Any, dict[str, Any]]:
        r = self.random
        kinds = ["string", "integer", "number", "boolean", "null", "array", "object"]
        kind = r.choice(kinds[: 7 if depth < 3 else 5])
        if kind == "string":
            return r.choice(TEXTS) + r.choice(["", r.choice(TEXTS)]), {"type": kind}
        if kind == "integer":
            return r.choice([0, -1, 7, 10**15, r.randrange(10**6)]), {"type": kind}
        if kind == "number":
            return r.choice([0.5, -2.25, 1e-7, 3.0, 12345.678]), {"type": kind}
        if kind == "boolean":
            return r.random() < 0.5, {"type": kind}
        if kind == "null":
            return None, {"type": kind}
        if kind == "array":
            return [self.value(depth + 1)[0] for _ in range(r.randrange(4))], {"type": kind}
        names = r.sample(["a", "b_c", "d1", "query", "Δ"], r.randrange(4))
        return {name: self.value(depth + 1)[0] for name in names}, {"type": kind}

    def calls(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Some calls as messages have them, and the schema of each tool."""
        calls, schemas = [], {}
        for at in range(self.random.choice([1, 1, 1, 2, 3])):
            name = f"{self.random.choice(['get_weather', 'bash', 'f', 'search2'])}_{at}"
            keys = self.random.sample(
                ["city", "path", "n", "old_text", "x2"], self.random.randrange(4)
            )
            values = {key: self.value() for key in keys}
            schemas[name] = {
                "type": "object",
                "properties": {key: schema for key, (_, schema) in values.items()},
            }
            arguments = {key: value for key, (value, _) in values.items()}
            function = {"name": name, "arguments": arguments}
            number = f"functions.{name}:{at}"
            calls.append({"id": number, "type": "function", "function": function})
        return calls, schemas


def reply_of(family: str, calls: list[dict[str, Any]], ids_of: int) -> str:
    """The reply that a family's template writes for these calls, up to the token that ends it."""
    _, template, ends = FAMILIES[family]
    question = [{"role": "user", "content": "q?"}]
    shaped = json.loads(json.dumps(calls))
    for at, call in enumerate(shaped):
        if family.startswith("mistral"):
            call["id"] = f"{ids_of:05}{at:04}"
        if family.startswith("deepseek"):
            arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            call["function"]["arguments"] = arguments
    content = None if family == "deepseek-v3" else ""
    before = rendered(template, question)
    said = {"role": "assistant", "content": content, "tool_calls": shaped}
    whole = rendered(template, [*question, said])
    behind = whole[len(rendered(template, question).split("q?")[0]) + 2 :]
    before = before.split("q?")[1]
    size = next((i for i, (a, b) in enumerate(zip(before, behind, strict=False)) if a != b), None)
    size = min(len(before), len(behind)) if size is None else size
    if (at := before.rfind("<", 0, size)) >= 0 and ">" not in before[at:size]:
        size = at  # they part within a mark
    reply = behind[size:]
    cut = [at for end in ends[:1] if (at := reply.rfind(end)) >= 0]
    if family == "glm-4.5":
        return reply.removesuffix("<|assistant|>")
    return reply[: cut[0]] if cut else reply


def read(parser: ToolParser, text: str, sizes: list[int] | None = None) -> list[Delta]:
    """A text as it is read in pieces of these sizes, adjacent texts joined."""
    deltas, at = list[Delta](), 0
    for size in sizes or [len(text)]:
        deltas += parser.push(text[at : at + size])
        at += size
    deltas += [*parser.push(text[at:]), *parser.end()]
    joined = list[Delta]()
    for delta in deltas:
        if joined and isinstance(delta, str) and isinstance(last := joined[-1], str):
            joined[-1] = last + delta
        elif delta:
            joined.append(delta)
    return joined


@families
def test_a_thousand_calls_are_read_back(family: str) -> None:
    """Nested, of every type, with quotes, line breaks and letters of other scripts; in two pieces
    as whole."""
    form, drawn, good = FORMS[FAMILIES[family][0]], Drawn(len(family)), 0
    for at in range(DRAWS):
        calls, schemas = drawn.calls()
        reply = reply_of(family, calls, at)
        whole = read(form.parser(schemas), reply)
        found = [(c.name, json.loads(c.arguments)) for c in calls_in(whole)]
        expected = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
        assert found == expected, reply
        assert not [d for d in whole if isinstance(d, str) and "think" not in d], reply
        cut = drawn.random.randrange(len(reply) + 1)
        assert read(form.parser(schemas), reply, [cut]) == whole, (reply, cut)
        good += 1
    assert good == DRAWS


def tokenizer_of(folder: Path, template: str, ends: tuple[str, ...], special: bool) -> Tokenizer:
    """The bundled tokenizer with a family's template; its marks are special tokens or not."""
    write_tokenizer(folder)
    if special:
        file = Fast.from_file(str(folder / "tokenizer.json"))
        marks = {mark for form in every_format() for mark in form.marks if mark.startswith("<|")}
        file.add_special_tokens(sorted({*ends, *marks}))
        file.save(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": ends[0]}))
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer(folder, chat=True)


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "a + b",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "a"},
                "b": {"type": "string", "description": "b"},
            },
        },
    },
}


@families
async def test_the_form_is_found_by_the_template_and_read_in_a_call(
    tmp_path: Path, family: str, virtual: MockClock
) -> None:
    """And the reply with its call goes on as it was sampled when it comes back."""
    name, template, ends = FAMILIES[family]
    tokenizer = tokenizer_of(tmp_path, template, ends, special=False)
    found = format_of(tokenizer)
    assert found.refusal == "" and found.calls is not None and found.calls.name == name
    function = {"name": "add", "arguments": {"a": 1, "b": "2"}}
    reply = reply_of(
        family, [{"id": "functions.add:0", "type": "function", "function": function}], 7
    )
    if found.pair is not None and not reply.lstrip("\n").startswith(("<think>", "</think>")):
        prompt = tokenizer.render([{"role": "user", "content": "q?"}], [TOOL])
        reply = ("a thought\n</think>\n\n" if prompt.rstrip().endswith("<think>") else "") + reply
    says = Says(say(reply), say("done"))
    engine = scripted(says)
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        first = (await client.post(CHAT, json=chat("q?", tools=[TOOL]))).json()["choices"][0]
        (call,) = first["message"]["tool_calls"]
        assert call["function"]["name"] == "add" and first["finish_reason"] == "tool_calls"
        assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": "2"}
        assert "<" not in (first["message"]["content"] or "")
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        second = await client.post(CHAT, json=chat("q?", first["message"], result, tools=[TOOL]))
        assert second.status_code == 200, second.text
    if family not in ("minimax-m2", "deepseek-v3", "glm-4.5"):  # they render it in another way
        assert says.asked()[1].startswith(says.asked()[0] + reply.encode().decode("latin-1"))


async def test_marks_that_are_special_tokens_are_read_and_not_shown(
    tmp_path: Path, virtual: MockClock
) -> None:
    name, template, ends = FAMILIES["gpt-oss"]
    tokenizer = tokenizer_of(tmp_path, template, ends, special=True)
    assert (found := format_of(tokenizer).calls) is not None and found.name == name
    said = (
        "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.add <|constrain|>json<|message|>{"a": 1}'
    )
    final = "<|channel|>analysis<|message|>So<|end|><|start|>assistant<|channel|>final<|message|>3"
    scripts = []
    for text in (said, final):
        ids = np.array(tokenizer.ids(text), np.int32)
        scripts.append(Script(ids, -np.ones(len(ids), np.float32), 0.001, "stop"))
    options = EngineOptions(slots=4, context_tokens=CONTEXT, chunk_tokens=1)
    engine = ScriptedEngine(Says(*scripts), options, vocab_size=tokenizer.vocabulary)
    async with opened(engine, tokenizer, vocabulary=tokenizer.vocabulary) as (_, client):
        await engine.load(0, None)
        answer = await client.post(CHAT, json=chat("q?", tools=[TOOL]))
        assert answer.status_code == 200, answer.text
        body = answer.json()["choices"][0]["message"]
        assert body["reasoning_content"] == "I add." and body["content"] is None
        assert body["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
        plain = (await client.post(CHAT, json=chat("q?"))).json()["choices"][0]["message"]
        assert (plain["content"], plain["reasoning_content"]) == ("3", "So")


async def test_tools_that_a_template_hides_are_named_and_calls_are_read(
    tmp_path: Path, virtual: MockClock
) -> None:
    """DeepSeek's own template shows no tools: an agent describes them in its prompt."""
    _, template, ends = FAMILIES["deepseek-v3"]
    hiding = template.replace("{{ tool | tojson }}", "")
    tokenizer = tokenizer_of(tmp_path, hiding, ends, special=False)
    function = {"name": "add", "arguments": {"a": 1}}
    reply = reply_of("deepseek-v3", [{"id": "1", "type": "function", "function": function}], 7)
    engine = scripted(Says(say(f"</think>{reply}")))
    async with opened(engine, tokenizer) as (_, client):
        await engine.load(0, None)
        answer = await client.post(CHAT, json=chat("hi", tools=[TOOL]))
    assert answer.headers["x-ignored"] == "tools"
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "add"


def test_thoughts_have_the_name_that_the_template_knows_and_never_beside_text_and_calls() -> None:
    """The template of gpt-oss refuses a message that has all three."""
    harmony = ModelFormat(calls=FORMS["harmony"], thoughts_field="thinking")
    call: Any = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    said: Any = {"role": "assistant", "content": "", "reasoning_content": "why"}
    assert harmony.shaped(said)["thinking"] == "why"
    assert harmony.shaped({**said, "tool_calls": [call]})["thinking"] == "why"
    all_three = harmony.shaped({**said, "content": "so", "tool_calls": [call]})
    assert "thinking" not in all_three and "reasoning_content" not in all_three
    assert ModelFormat().shaped(said) == said


async def test_thoughts_are_split_off_and_come_back_to_the_template(
    tmp_path: Path, virtual: MockClock
) -> None:
    """A client leaves them out; in a loop of tools the template keeps them, so the next call goes
    on from the tokens that were sampled."""
    tokenizer = tokenizer_of(tmp_path, QWEN3, ("<|im_end|>",), special=False)
    said = (
        '<think>\nadd "them"\n</think>\n\nI add.\n<tool_call>\n'
        '{"name": "add", "arguments": {"a": 1, "b": "2"}}\n</tool_call>'
    )
    for path, content in (("chat/completions", "messages"), ("messages", "messages")):
        says = Says(say(said), say("3"))
        engine = scripted(says, chunk_tokens=1)
        async with opened(engine, tokenizer) as (_, client):
            await engine.load(0, None)
            url = f"/sessions/r1-1/v1/{path}"
            tools: list[Any] = [TOOL]
            if path == "messages":
                f = TOOL["function"]
                tools = [{"name": "add", "input_schema": f["parameters"]}]  # type: ignore[index]
            asked: dict[str, Any] = {"model": "m", content: [{"role": "user", "content": "q?"}]}
            asked["tools"] = tools
            body = (await client.post(url, json=asked)).json()
            if path == "messages":
                thought, text, call = body["content"]
                assert (thought["thinking"], text["text"]) == ('add "them"', "I add.")
                back = [
                    {"role": "assistant", "content": [text, call]},
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": call["id"], "content": "3"}
                        ],
                    },
                ]
            else:
                message = body["choices"][0]["message"]
                assert message.pop("reasoning_content") == 'add "them"'
                assert message["content"] == "I add."
                number = message["tool_calls"][0]["id"]
                back = [message, {"role": "tool", "tool_call_id": number, "content": "3"}]
            asked[content] += back
            assert (await client.post(url, json=asked)).status_code == 200
        assert says.asked()[1].startswith(says.asked()[0] + said)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "does not show tools"),
        (
            "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "does not render tool calls",
        ),
        (
            "{{ tools | tojson }}{% for m in messages %}{{ m.content }}"
            "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} WITH "
            "{{ c.function.arguments }}{% endfor %}{% endfor %}",
            "in a form that the gateway cannot read",
        ),
    ],
)
async def test_a_form_that_cannot_be_read_is_refused_where_tools_are_offered(
    tmp_path: Path, virtual: MockClock, template: str, words: str
) -> None:
    tokenizer = tokenizer_of(tmp_path, template, ("</s>",), special=False)
    engine = scripted(Says(say("x")))
    async with opened(engine, tokenizer) as (coordinator, client):
        await engine.load(0, None)
        assert (await client.post(CHAT, json=chat("hi"))).status_code == 200
        answer = await client.post(CHAT, json=chat("hi", tools=[TOOL]))
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == "tools" and words in error["message"]
    assert len(coordinator.asks) == 1


PIECES = [
    *(mark for form in every_format() for mark in form.marks),
    "functions.f:0",
    "call:f{a:1}",
    "f",
    "(a=1)",
    "[",
    "]",
    "{",
    "}",
    '{"name": "f", "arguments": {}}',
    '{"a": 1}',
    "</parameter>",
    "<parameter=a>",
    "text",
    " ",
    "\n",
    "é",
    "to=functions.f",
    "analysis",
    "<think>",
    "</think>",
]


@given(
    parts=st.lists(st.sampled_from(PIECES), max_size=10),
    sizes=st.lists(st.integers(0, 9), max_size=12),
    form=st.sampled_from(every_format()),
)
@example(parts=["<|message|>", "text"], sizes=[3], form=harmony.FORMAT)
@example(parts=["text", "<|message|>", "{}"], sizes=[4], form=harmony.FORMAT)
def test_any_text_is_read_the_same_in_any_pieces(
    parts: list[str], sizes: list[int], form: ToolFormat
) -> None:
    text = "".join(parts)
    whole = read(form.parser({}), text)
    pieces = read(form.parser({}), text, sizes)
    if form.always:  # its thoughts come in parts
        assert (text_of(pieces), calls_in(pieces)) == (text_of(whole), calls_in(whole))
        assert thoughts_of(pieces) == thoughts_of(whole)
    else:
        assert pieces == whole
        if not calls_in(whole) and "DeepSeek" not in form.name and "Kimi" not in form.name:
            assert text_of(whole) == text, "what is no call is text"
    for call in calls_in(whole):
        assert isinstance(json.loads(call.arguments), dict) and call.name


@pytest.mark.parametrize("form", every_format(), ids=lambda form: form.name)
def test_a_call_that_never_ends_costs_little(form: ToolFormat) -> None:
    """It is read on the event loop: the more there is, the less often."""
    for mark in form.marks:
        for piece in (mark, f"{mark}{{[(", "</function>", "]", "}", "<arg_key>", "x"):
            parser, begun = form.parser({}), time.process_time()
            deltas = [*parser.push(form.marks[0]), *parser.push(mark)]
            for _ in range(2000):
                deltas += parser.push(piece)
            deltas += parser.end()
            assert time.process_time() - begun < 2.0, (mark, piece)


@given(
    thought=st.text("ab<\n ", max_size=8),
    behind=st.text("ab<\n ", max_size=8),
    sizes=st.lists(st.integers(0, 9), max_size=8),
    opened_by=st.booleans(),
)
def test_thoughts_and_their_marks_are_the_text(
    thought: str, behind: str, sizes: list[int], opened_by: bool
) -> None:
    pair = ("<think>", "</think>")
    text = f"{'' if opened_by else '<think>'}{thought}</think>{behind}"
    parser = Thoughts(pair, PlainText(), "<think>" if opened_by else "")
    deltas = read(parser, text, sizes)
    raw = "".join(d.raw for d in deltas if isinstance(d, Thought))
    assert raw + text_of(deltas) == f"<think>{thought}</think>{behind}"
    assert thoughts_of(deltas) == thought.strip("\n")
    assert text_of(deltas) == behind.lstrip("\n")


def test_what_looks_like_a_call_in_any_form() -> None:
    for family in FAMILIES:
        calls, _ = Drawn(3).calls()
        if FAMILIES[family][0] != "pythonic":
            assert looks_like_a_call(reply_of(family, calls, 0)), family
    for text in ("I call you.", "a < b", "[1, 2]", '{"a": 1}', ""):
        assert not looks_like_a_call(text)


async def test_a_text_that_looks_like_a_call_and_was_none_is_counted(
    tmp_path: Path, virtual: MockClock
) -> None:
    tokenizer = tokenizer_of(tmp_path, QWEN3, ("<|im_end|>",), special=False)
    counted: list[str] = []
    engine = scripted(Says(say("<function=add>\n</function>"), say("none")))
    async with opened(engine, tokenizer, count=counted.append) as (_, client):
        await engine.load(0, None)
        for _ in range(2):
            answer = await client.post(CHAT, json=chat("hi", tools=[TOOL]))
            assert answer.json()["choices"][0]["finish_reason"] == "stop"
        await client.post(CHAT, json=chat("hi"))
        assert counted == ["agents_offered_tools", "agents_unread_calls", "agents_offered_tools"]
    cut = list[str]()
    engine = scripted(Says(say("<tool_call>no")))
    async with opened(engine, tokenizer, count=cut.append) as (_, client):
        await engine.load(0, None)
        await client.post(CHAT, json=chat("hi", tools=[TOOL], max_tokens=12))
    assert not cut, "one that was cut at its length may have become a call"
