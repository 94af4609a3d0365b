"""The form of a model's calls and thoughts, found by its chat template at the start. A call is
rendered with the template and read back by each form; the form that gives the same call is the
model's.

Invariant: a call in a form that cannot be read is never silently taken for text: tools are refused
then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Protocol

import msgspec

from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.formats.every_format import every_format
from asyncrl.agents.gateway.formats.thoughts import PAIRS, Thoughts
from asyncrl.agents.gateway.formats.tool_format import ToolFormat
from asyncrl.agents.gateway.tools import PlainText, Schemas, ToolCall, ToolParser
from asyncrl.tasks import TaskError

_NAME, _QUESTION, _ANSWER = "find_papers", "asyncrl2question7", "asyncrl4answer6"
_MARK = re.compile(r"\s*(<[^<>]+>|\[[^\[\]]+\])")
_ARGUMENTS = {"query": 'a "b" é', "limit": 3, "tags": ["x", "y"]}
_SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "words"},
        "limit": {"type": "integer", "description": "results"},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "topics"},
    },
    "required": ["query"],
}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "Find papers.", "parameters": _SCHEMA},
}
_IDS = ("Zk3fN8qLw", f"functions.{_NAME}:0")
"""Numbers of calls: some templates accept only nine letters and digits, some only their own
form."""


class Renders(Protocol):
    """The parts of a tokenizer that are needed here."""

    template: str
    stop_ids: tuple[int, ...]

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str: ...

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...


class ModelFormat(msgspec.Struct, frozen=True):
    """`calls` is the form of calls, and `pair` the marks of thoughts; None: the model has none.
    With `text_arguments` the template takes arguments as text; with `no_content` it takes no
    content beside calls; with `hides_tools` it shows no tools, though the model's calls can be
    read. Tools are refused with `refusal`, a sentence, if it is not empty."""

    calls: ToolFormat | None = None
    pair: tuple[str, str] | None = None
    text_arguments: bool = False
    no_content: bool = False
    thoughts_field: str = ""
    hides_tools: bool = False
    refusal: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts whose special tokens a reply keeps until it is read."""
        return (*(self.calls.marks if self.calls else ()), *(self.pair or ()))

    def parser(
        self, tools: Sequence[Mapping[str, Any]], prompt: str, *, special: bool
    ) -> ToolParser:
        """A parser of the reply to a prompt. With `special` thoughts stay in the text. Raises
        GatewayError (400) if calls cannot be read."""
        inner: ToolParser = PlainText()
        if tools and self.refusal:
            raise GatewayError(400, "tools_unreadable", self.refusal, param="tools")
        if self.calls is not None and (tools or self.calls.always):
            inner = self.calls.parser(schemas_of(tools))
        if self.pair is None or special:
            return inner
        return Thoughts(self.pair, inner, opened(prompt, self.pair))

    def shaped(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message as the template takes it."""
        if message["role"] != "assistant":
            return message
        shaped = dict(message)
        thoughts = shaped.pop("reasoning_content", None)
        both = self.thoughts_field == "thinking" and message.get("tool_calls")
        if thoughts and not (both and message["content"]):  # gpt-oss's template refuses all three
            shaped[self.thoughts_field or "reasoning_content"] = thoughts
        if calls := message.get("tool_calls"):
            if self.text_arguments:
                shaped["tool_calls"] = [_as_text(call) for call in calls]
            if self.no_content and not message["content"]:
                shaped["content"] = None
        return shaped


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """The schema of the parameters of each tool."""
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


def opened(prompt: str, pair: tuple[str, str]) -> str:
    """The end of a prompt from the mark on, if it opens a thought."""
    bare = prompt.rstrip()
    if not bare.endswith(pair[0]):
        return ""
    return prompt[len(bare) - len(pair[0]) :]


def format_of(tokenizer: Renders) -> ModelFormat:
    """The form of a model with this tokenizer. It takes several requests to the template's
    process."""
    template = tokenizer.template
    if not template:
        return ModelFormat()
    pair = next((pair for pair in PAIRS if pair[1] in template), None)
    field = "reasoning_content" if "reasoning_content" in template else ""
    plain = ModelFormat(pair=pair, thoughts_field=field)
    question = [{"role": "user", "content": _QUESTION}]
    asked = _rendered(tokenizer, question, [_TOOL])
    if asked is None:
        return _refusing(plain, "cannot render tools: describe tools in the prompt")
    shown, written = _NAME in asked, False
    for texts, none, number in product((False, True), (False, True), _IDS):
        shape = msgspec.structs.replace(plain, text_arguments=texts, no_content=none)
        reply = _reply(tokenizer, question, asked, shape, number)
        written = written or (reply is not None and _NAME in reply)
        for form in every_format():
            if reply and _NAME in reply and _reads(form, reply):
                harmony = "thinking" if form.always else field
                return msgspec.structs.replace(
                    shape, calls=form, thoughts_field=harmony, hides_tools=not shown
                )
    if not shown:
        return _refusing(plain, "does not show tools to it: describe tools in the prompt")
    if not written:
        return _refusing(plain, "does not render tool calls: write them in the text of messages")
    names = ", ".join(form.name for form in every_format())
    return _refusing(
        plain,
        f"renders tool calls in a form that the gateway cannot read (it reads {names}): "
        "describe tools in the prompt",
    )


def _refusing(plain: ModelFormat, reason: str) -> ModelFormat:
    return msgspec.structs.replace(
        plain, refusal=f"the model's chat template {reason}, or train a model with another template"
    )


def _reads(form: ToolFormat, reply: str) -> bool:
    """True if a form reads exactly the call of the probe in a reply."""
    parser = form.parser(schemas_of([_TOOL]))
    deltas = [*parser.push(reply), *parser.end()]
    calls = [delta for delta in deltas if isinstance(delta, ToolCall)]
    return [(call.name, msgspec.json.decode(call.arguments)) for call in calls] == [
        (_NAME, _ARGUMENTS)
    ]


def _reply(
    tokenizer: Renders, question: list[dict[str, Any]], asked: str, shape: ModelFormat, number: str
) -> str | None:
    """The reply that the template makes of a call, without what surrounds it."""
    call = {
        "id": number,
        "type": "function",
        "function": {"name": _NAME, "arguments": _ARGUMENTS},
    }
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "none", "tool_call_id": number, "name": _NAME}
    whole = None
    for more in ([], [result]):  # some templates want the results of calls
        whole = _rendered(tokenizer, [*question, shape.shaped(said), *more], [_TOOL])
        if whole is not None and _NAME in whole.rpartition(_QUESTION)[2]:
            break
    if whole is None:
        return None
    before, behind = asked.rpartition(_QUESTION)[2], whole.rpartition(_QUESTION)[2]
    rest = behind[_common(before, behind) :]
    ends = [at for name in _ends(tokenizer, question) if (at := rest.find(name)) >= 0]
    return rest[: min(ends)] if ends else rest


def _common(one: str, other: str) -> int:
    """The number of characters that both begin with, up to the mark in which they differ: `<think>`
    and `<tool_call>` have none in common."""
    pairs = enumerate(zip(one, other, strict=False))
    size = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
    for start, end in ("<>", "[]"):
        if (at := one.rfind(start, 0, size)) >= 0 and end not in one[at:size]:
            size = at
    return size


def _ends(tokenizer: Renders, question: list[dict[str, Any]]) -> Iterator[str]:
    """The marks that end a reply: the names of the model's tokens, and the mark that the template
    puts behind one."""
    answered = [*question, {"role": "assistant", "content": _ANSWER}]
    behind = (_rendered(tokenizer, answered, []) or "").rpartition(_ANSWER)[2]
    if (mark := _MARK.match(behind)) is not None:
        yield mark[1]
    for number in tokenizer.stop_ids:
        if name := tokenizer.decode([number], special=True):
            yield name


def _rendered(tokenizer: Renders, messages: Any, tools: Any) -> str | None:
    try:
        return tokenizer.render(messages, tools)
    except TaskError:
        return None


def _as_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    text = msgspec.json.encode(arguments).decode() if isinstance(arguments, dict) else arguments
    return {**call, "function": {**function, "arguments": text}}
