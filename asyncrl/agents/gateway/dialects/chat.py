"""OpenAI's chat completions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from asyncrl.agents.gateway.dialects.contents import REFUSAL, content_of
from asyncrl.agents.gateway.dialects.parameters import (
    CHOICES,
    MESSAGES,
    ModelName,
    Positive,
    Temperature,
    arguments_of,
    checked_stops,
    custom_tool,
    form_ignored,
    function_tool,
    is_named,
    metadata_role,
    named,
    parse,
    served,
)
from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.inner_call import (
    AnswerFacts,
    AnswerPart,
    CallEnd,
    Dialect,
    Envelope,
    ModelCall,
    SampledChoice,
    Token,
    calls_in,
    text_input,
    text_of,
    thoughts_of,
)
from asyncrl.agents.gateway.tools import ToolCall

STOPS = 4
_NULL = b"null"
NEUTRAL: dict[str, Any] = {
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "parallel_tool_calls": True,
    "store": False,
    "top_logprobs": 0,
    "logit_bias": {},
}
"""Values with which these parameters change nothing."""
IGNORED = ("seed", "temperature", "top_k", "min_p", "repetition_penalty", "metadata")
"""Parameters without effect, whatever their value."""
REFUSED = {
    "functions": "it is no longer OpenAI's; use tools",
    "function_call": "it is no longer OpenAI's; use tool_choice",
    "audio": "this model writes text alone",
    "web_search_options": "the gateway searches nothing; offer a tool that does",
}


class StreamOptions(msgspec.Struct):
    """OpenAI's options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Custom(msgspec.Struct):
    name: str
    input: str


class _Call(msgspec.Struct):
    id: str
    function: _Function | None = None
    custom: _Custom | None = None
    type: Literal["function", "custom"] = "function"
    index: int | None = None


class _OpenAiMessage(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] = ""
    tool_calls: list[_Call] = []
    tool_call_id: str = ""
    name: str = ""
    reasoning_content: str = ""
    reasoning: str = ""
    annotations: msgspec.Raw = msgspec.Raw()
    refusal: str = ""


class CallRequest(msgspec.Struct, kw_only=True):
    """The fields that OpenAI's chat and text completions have. None leaves the choice to the
    gateway."""

    model: ModelName
    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    user: str | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=CHOICES)] | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None

    @property
    def usage(self) -> bool:
        """True if a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(CallRequest, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=MESSAGES)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    modalities: list[str] | None = None
    top_k: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def read(body: bytes, settings: Settings) -> ModelCall:
    """A request. Raises GatewayError."""
    asked, ignored = parse(
        body, ChatRequest, settings, neutral=NEUTRAL, ignored=IGNORED, refused=REFUSED
    )
    served(asked.model, settings)
    one_choice(asked.n, settings)
    ignored += form_ignored(asked.response_format, "response_format", settings)
    if asked.modalities is not None and set(asked.modalities) != {"text"}:
        raise bad("modalities must be ['text']: this model writes text alone", "modalities")
    tools, left, texts = _tools(asked.tools or [])
    tools, chosen = choose(tools, asked.tool_choice, settings)
    dropped: dict[str, None] = {}
    messages = [_message(at, raw, settings, dropped) for at, raw in enumerate(asked.messages)]
    budget = asked.max_completion_tokens
    return ModelCall(
        model=asked.model,
        messages=named(messages),
        tools=tools,
        budget=asked.max_tokens if budget is None else budget,
        stops=checked_stops(asked.stop, STOPS, "stop"),
        choices=asked.n or 1,
        stream=bool(asked.stream),
        usage=asked.usage,
        scored=bool(asked.logprobs),
        special=asked.skip_special_tokens is False,
        ignored=(*ignored, *left, *chosen, *dropped),
        role=metadata_role(asked.metadata),
        texts=frozenset(texts),
    )


def one_choice(choices: int | None, settings: Settings) -> None:
    """Refuse several answers where parameters are strict."""
    if settings.strict and choices not in (None, 1):
        raise bad(f"n must be 1 or left out, not {choices}", "n", "unsupported_value")


def choose(
    tools: list[dict[str, Any]],
    choice: str | Mapping[str, Any] | None,
    settings: Settings,
    hosted: re.Pattern[str] | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """The tools that the model is shown by a `tool_choice`, and what of it has no effect: a call
    cannot be enforced, and no tool of OpenAI's servers (`hosted`) is here. Raises GatewayError
    (400)."""
    if choice is None or choice == "auto":
        return tools, []
    if choice == "none":
        return [], []
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if not settings.strict and hosted and isinstance(kind, str) and hosted.match(kind):
        return tools, ["tool_choice"]
    if settings.strict or kind not in ("required", "function", "custom", "allowed_tools"):
        known = "'auto' or 'none'" if settings.strict else "auto, none, required or tools"
        raise bad(f"tool_choice must be {known}, not {choice!r}", "tool_choice")
    if isinstance(choice, Mapping) and kind in ("function", "custom"):
        is_named(tools, _name_of(choice))
    if isinstance(choice, Mapping) and kind == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        allowed = inner.get("tools") if isinstance(inner, Mapping) else None
        if not isinstance(allowed, list):
            raise bad("tool_choice: allowed_tools must have a list of tools", "tool_choice")
        names = [_name_of(tool) for tool in allowed if not _is_hosted(tool, hosted)]
        for name in names:
            is_named(tools, name)
        tools = [tool for tool in tools if tool["function"]["name"] in names]
        return tools, [] if inner.get("mode", "auto") == "auto" else ["tool_choice"]
    return tools, ["tool_choice"]


def _name_of(tool: Any) -> Any:
    """The name of a function or a custom tool, as chat has it (`{"type": T, T: {"name": …}}`) or
    responses (`{"type": T, "name": …}`)."""
    inner = tool.get(str(tool.get("type")), tool) if isinstance(tool, Mapping) else None
    return inner.get("name") if isinstance(inner, Mapping) else None


def _is_hosted(tool: Any, hosted: re.Pattern[str] | None) -> bool:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    return hosted is not None and isinstance(kind, str) and hosted.match(kind) is not None


def _tools(
    tools: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """The tools for the chat template, what of them has no effect, and the names of those that take
    a text. Raises GatewayError (400)."""
    found, left, texts = list[dict[str, Any]](), list[str](), list[str]()
    for at, tool in enumerate(tools):
        kind = tool.get("type")
        inner = tool.get(kind) if kind in ("function", "custom") else None
        if not isinstance(inner, Mapping):
            raise bad(
                f"tools[{at}] must be a function with a name: {{'type': 'function', 'function': "
                f"{{'name': ...}}}}",
                "tools",
            )
        if kind == "custom":
            shown, without = custom_tool(at, inner)
            left += without
            texts.append(shown["function"]["name"])
        else:
            function_tool(at, inner.get("name"), None, inner.get("parameters"))
            shown = dict(tool)
        found.append(shown)
    return found, left, texts


def _call(where: str, call: _Call, settings: Settings) -> dict[str, Any]:
    """A call of an earlier reply. Raises GatewayError (400)."""
    called = {"id": call.id, "type": "function"}
    if call.custom is not None:
        text = {"input": call.custom.input}
        return called | {"function": {"name": call.custom.name, "arguments": text}}
    if call.function is None:
        raise bad(f"{where}: a call must have its function, with name and arguments", "messages")
    arguments = arguments_of(where, call.function.name, call.function.arguments, settings)
    return called | {"function": {"name": call.function.name, "arguments": arguments}}


def _message(
    at: int, raw: msgspec.Raw, settings: Settings, dropped: dict[str, None]
) -> dict[str, Any]:
    """Convert one message. Clients send replies back with every field that was null."""
    where = f"messages[{at}]"
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        present = {name: value for name, value in fields.items() if bytes(value) != _NULL}
        message = msgspec.json.decode(msgspec.json.encode(present), type=_OpenAiMessage)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise bad(f"{where}: {error}", "messages") from error
    for name in present:
        if name in ("function_call", "audio"):
            raise bad(f"{where}: {name} cannot be read; use tool_calls and text", "messages")
        if name not in _OpenAiMessage.__struct_fields__:
            if settings.strict:
                raise bad(f"{where}: the gateway does not know {name!r}", "messages")
            dropped[f"messages.{name}"] = None
    role = "system" if message.role == "developer" else message.role
    said = message.content or message.refusal
    content = content_of(said, where, ("text", REFUSAL), role, settings)
    plain: dict[str, Any] = {"role": role, "content": content}
    if message.tool_calls:
        plain["tool_calls"] = [_call(where, call, settings) for call in message.tool_calls]
    for name in ("tool_call_id", "name"):
        if value := getattr(message, name):
            plain[name] = value
    if thoughts := message.reasoning_content or message.reasoning:
        plain["reasoning_content"] = thoughts
    return plain


class Chat(Envelope):
    """Forms of `/v1/chat/completions`."""

    def __init__(self, call: ModelCall, facts: AnswerFacts) -> None:
        super().__init__(call, facts)
        self._begun = set[int]()
        self._calls = [0] * call.choices

    def whole(self, choices: Sequence[SampledChoice]) -> bytes:
        answers = [self._choice(index, choice) for index, choice in enumerate(choices)]
        usage = usage_of([choice.end for choice in choices])
        return msgspec.json.encode(self._object("chat.completion", answers, usage=usage))

    def _choice(self, index: int, choice: SampledChoice) -> dict[str, Any]:
        calls = [self._called(call) for call in choice.calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text if choice.text or not calls else None,
            "refusal": None,
        }
        if choice.thoughts:
            message["reasoning_content"] = choice.thoughts
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": self._scores(choice.tokens),
            "finish_reason": choice.end.finish,
        }

    def part(self, index: int, read: AnswerPart) -> bytes:
        text, thoughts = text_of(read.deltas), thoughts_of(read.deltas)
        delta: dict[str, Any] = {} if index in self._begun else {"role": "assistant"}
        self._begun.add(index)
        if thoughts:
            delta["reasoning_content"] = thoughts
        if text:
            delta["content"] = text
        for call in calls_in(read.deltas):
            called = {"index": self._calls[index], **self._called(call)}
            delta.setdefault("tool_calls", []).append(called)
            self._calls[index] += 1
        return event(self._chunk(index, delta, None, self._scores(read.tokens)))

    def last(self, index: int, end: CallEnd) -> bytes:
        return event(self._chunk(index, {}, end.finish, None))

    def done(self, ends: Sequence[CallEnd]) -> bytes:
        if not self._call.usage:
            return DONE
        return event(self._object("chat.completion.chunk", [], usage=usage_of(ends))) + DONE

    def failed(self, error: GatewayError) -> bytes:
        return b"data: " + error.body() + b"\n\n"

    def _object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._facts.number}",
            "object": kind,
            "created": self._facts.created,
            "model": self._call.model,
            "choices": choices,
            **more,
        }

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None, scores: dict[str, Any] | None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": finish}
        return self._object("chat.completion.chunk", [choice], **self._no_usage)

    @property
    def _no_usage(self) -> dict[str, None]:
        """The usage of a part that is not the last, where the client asked for it."""
        return {"usage": None} if self._call.usage else {}

    def _called(self, call: ToolCall) -> dict[str, Any]:
        if call.name in self._call.texts:
            custom = {"name": call.name, "input": text_input(call)}
            return {"id": call.id, "type": "custom", "custom": custom}
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": function}

    def _scores(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._call.scored:
            return None
        content: list[dict[str, Any]] = [
            {
                "token": token.text,
                "logprob": token.behaviour,
                "bytes": _bytes(token.text),
                "top_logprobs": [],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def _bytes(text: str) -> list[int] | None:
    """A token's bytes, unless it is a part of a character: then its text does not say them."""
    return None if "\ufffd" in text else [*text.encode()]


def usage_of(ends: Sequence[CallEnd]) -> dict[str, int]:
    """OpenAI's usage of one call."""
    prompt, tokens = ends[0].prompt_tokens, sum(end.tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
    }


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""The end of a stream."""

DIALECT = Dialect("/chat/completions", read, Chat, GatewayError.body)
