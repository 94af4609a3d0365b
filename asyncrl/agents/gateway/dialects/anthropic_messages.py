"""Anthropic's messages, and the number of tokens of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from asyncrl.agents.gateway.dialects.contents import (
    content_of,
    joined,
    parts_of,
    text_blocks,
)
from asyncrl.agents.gateway.dialects.parameters import (
    MESSAGES,
    ModelName,
    Positive,
    checked_stops,
    few,
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
)
from asyncrl.agents.gateway.tools import Delta, Thought, ToolCall

STOPS = 16
VERSIONS = ("2023-06-01", "2026-10-21")
IGNORED = (
    "temperature",
    "top_p",
    "top_k",
    "metadata",
    "service_tier",
    "thinking",
    "context_management",
)
REFUSED = {
    "mcp_servers": "the gateway opens no servers; offer their tools",
    "container": "the gateway has no containers; offer a tool that does",
}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_HOSTED = re.compile(r"[a-z_]+_[0-9]{8}")
"""Types of tools of Anthropic's own, such as `web_search_20250305`."""
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": ""},
    "tool_use": {"input": {}},
}
"""Blocks as a stream begins them."""


class _AnthropicMessage(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class MessagesRequest(msgspec.Struct, kw_only=True):
    """The body of `/v1/messages`."""

    model: ModelName
    messages: Annotated[list[_AnthropicMessage], msgspec.Meta(min_length=1, max_length=MESSAGES)]
    max_tokens: Positive | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    thinking: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


def read(body: bytes, settings: Settings) -> ModelCall:
    """A request. Raises GatewayError."""
    asked, ignored = parse(
        body, MessagesRequest, settings, neutral={}, ignored=IGNORED, refused=REFUSED
    )
    served(asked.model, settings)
    config = asked.output_config or {}
    ignored += form_ignored(config.get("format"), "output_config.format", settings)
    ignored += [f"output_config.{name}" for name in config if name != "format"]
    tools, left = _tools(asked.tools or [], settings)
    tools, chosen = _choose(tools, asked.tool_choice or {"type": "auto"}, settings)
    messages: list[dict[str, Any]] = []
    if asked.system is not None:
        messages.append({"role": "system", "content": _text(asked.system, "system", "\n\n")})
    for at, message in enumerate(asked.messages):
        messages += _messages(f"messages[{at}]", message, settings)
    if messages[-1]["role"] == "assistant":
        raise bad(
            "the last message is the assistant's: the start of a reply cannot be given, because "
            "the model has not sampled it; end with a user's",
            "messages",
        )
    return ModelCall(
        model=asked.model,
        messages=named(messages),
        tools=tools,
        budget=asked.max_tokens,
        capped=True,
        stops=checked_stops(asked.stop_sequences, STOPS, "stop_sequences"),
        stream=bool(asked.stream),
        ignored=(*ignored, *left, *chosen),
        role=metadata_role(asked.metadata),
    )


def _tools(
    tools: Sequence[Mapping[str, Any]], settings: Settings
) -> tuple[list[dict[str, Any]], list[str]]:
    """The tools for the chat template, and the servers' own, which are not here."""
    found, left = list[dict[str, Any]](), list[str]()
    for at, tool in enumerate(tools):
        kind = tool.get("type")
        if kind not in (None, "custom") and "input_schema" not in tool:
            if settings.strict or not (isinstance(kind, str) and _HOSTED.fullmatch(kind)):
                raise bad(
                    f"tools[{at}] has the type {kind!r}, which is no tool of the client's", "tools"
                )
            left.append(f"tools.{kind}")
            continue
        if tool.get("input_schema") is None:
            raise bad(f"tools[{at}] must have an input_schema", "tools")
        found.append(
            function_tool(at, tool.get("name"), tool.get("description"), tool["input_schema"])
        )
    return found, left


def _choose(
    tools: list[dict[str, Any]], choice: Mapping[str, Any], settings: Settings
) -> tuple[list[dict[str, Any]], list[str]]:
    kind = choice.get("type")
    without = ["disable_parallel_tool_use"] if choice.get("disable_parallel_tool_use") else []
    if kind == "none":
        return [], []
    if kind == "auto":
        return tools, without
    if kind not in ("any", "tool") or settings.strict:
        raise bad(
            f"tool_choice of type {kind!r} is none of auto, none, any and tool"
            if not settings.strict
            else f"tool_choice {kind!r} cannot be enforced; use auto or none",
            "tool_choice",
        )
    if kind == "tool":
        is_named(tools, choice.get("name"))
    return tools, ["tool_choice", *without]


def _text(content: Any, where: str, between: str = "") -> str:
    return between.join(text_blocks(content, where, ("text",)))


def _messages(
    where: str, message: _AnthropicMessage, settings: Settings
) -> Iterator[dict[str, Any]]:
    """A message for the chat template; results of tools are messages of their own."""
    blocks = message.content
    if isinstance(blocks, str):
        yield {"role": message.role, "content": blocks}
        return
    parts, thoughts, calls = list[dict[str, Any]](), list[str](), list[dict[str, Any]]()
    results = 0
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_result" and message.role == "user":
            results += 1
            yield _result(where, block, settings)
        elif kind == "tool_use" and message.role == "assistant":
            calls.append(_call(where, block, settings))
        elif kind == "thinking" and message.role == "assistant":
            thoughts.append(str(block.get("thinking", "")))
        elif kind == "redacted_thinking" and message.role == "assistant":
            continue
        else:
            parts += parts_of(content_of([block], where, ("text",), message.role, settings))
    if message.role == "assistant":
        plain: dict[str, Any] = {"role": "assistant", "content": joined(parts)}
        if calls:
            plain["tool_calls"] = calls
        if any(thoughts):
            plain["reasoning_content"] = "".join(thoughts)
        yield plain
    elif parts or not results:
        yield {"role": message.role, "content": joined(parts)}


def _result(where: str, block: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    number, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(number, str):
        raise bad(f"{where}: a tool_result must have a tool_use_id", "messages")
    text = content_of(content or "", where, ("text",), "tool", settings)
    return {"role": "tool", "content": text, "tool_call_id": number}


def _call(where: str, block: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    number, name, given = block.get("id"), block.get("name"), block.get("input")
    if not (isinstance(number, str) and isinstance(name, str) and isinstance(given, dict)):
        raise bad(f"{where}: a tool_use must have an id, a name and an input", "messages")
    few(len(given), settings.items)
    return {"id": number, "type": "function", "function": {"name": name, "arguments": given}}


class Messages(Envelope):
    """Forms of `/v1/messages`."""

    def __init__(self, call: ModelCall, facts: AnswerFacts) -> None:
        super().__init__(call, facts)
        self._blocks, self._open = 0, ""
        self._begun = False

    def whole(self, choices: Sequence[SampledChoice]) -> bytes:
        (choice,) = choices
        blocks: list[dict[str, Any]] = []
        for delta in [delta for part in choice.parts for delta in part.deltas]:
            block = _block(delta)
            if block is None:
                continue
            if blocks and blocks[-1]["type"] == block["type"] != "tool_use":
                blocks[-1][block["type"]] += block[block["type"]]
            else:
                blocks.append(block)
        message = self._message(blocks, choice.end.prompt_tokens, choice.end.tokens)
        return msgspec.json.encode(message | _reason(choice.end))

    def part(self, index: int, read: AnswerPart) -> bytes:
        said = self._begin()
        for delta in read.deltas:
            block = _block(delta)
            if block is None:
                continue
            kind = block["type"]
            if kind != self._open or kind == "tool_use":
                said += self._close()
                self._open = kind
                start = {"index": self._blocks, "content_block": block | _EMPTY[kind]}
                said += _event("content_block_start", **start)
            said += _event("content_block_delta", index=self._blocks, delta=_delta(delta))
        return said

    def last(self, index: int, end: CallEnd) -> bytes:
        said = self._begin() + self._close()
        usage = {"input_tokens": end.prompt_tokens, "output_tokens": end.tokens}
        return said + _event("message_delta", delta=_reason(end), usage=usage)

    def done(self, ends: Sequence[CallEnd]) -> bytes:
        return _event("message_stop")

    def failed(self, error: GatewayError) -> bytes:
        return b"event: error\ndata: " + error_of(error) + b"\n\n"

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        message = self._message([], self._facts.prompt_tokens, 0)
        return _event(
            "message_start", message=message | {"stop_reason": None, "stop_sequence": None}
        )

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open, self._blocks = "", self._blocks + 1
        return _event("content_block_stop", index=self._blocks - 1)

    def _message(self, blocks: list[dict[str, Any]], given: int, sampled: int) -> dict[str, Any]:
        return {
            "id": f"msg_{self._facts.number}",
            "type": "message",
            "role": "assistant",
            "model": self._call.model,
            "content": blocks,
            "usage": {
                "input_tokens": given,
                "output_tokens": sampled,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
            },
        }


def _block(delta: Delta) -> dict[str, Any] | None:
    if isinstance(delta, ToolCall):
        given = msgspec.json.decode(delta.arguments)
        return {"type": "tool_use", "id": delta.id, "name": delta.name, "input": given}
    if isinstance(delta, Thought):
        thought = {"type": "thinking", "thinking": delta.text, "signature": ""}
        return thought if delta.text else None
    return {"type": "text", "text": delta}


def _delta(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, ToolCall):
        return {"type": "input_json_delta", "partial_json": delta.arguments}
    if isinstance(delta, Thought):
        return {"type": "thinking_delta", "thinking": delta.text}
    return {"type": "text_delta", "text": delta}


def _reason(end: CallEnd) -> dict[str, Any]:
    if end.stop is not None and end.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    return {"stop_reason": _REASONS[end.finish], "stop_sequence": None}


def _event(name: str, **content: Any) -> bytes:
    data = msgspec.json.encode({"type": name, **content})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def error_of(error: GatewayError) -> bytes:
    """An error in this dialect's form; `code` and `param` are the gateway's own."""
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    inner = {"type": kind, "message": error.message, "code": error.code, "param": error.param}
    return msgspec.json.encode({"type": "error", "error": inner})


def counted(tokens: int) -> bytes:
    """The answer of `/v1/messages/count_tokens`."""
    return msgspec.json.encode({"input_tokens": tokens})


DIALECT = Dialect(
    "/messages",
    read,
    Messages,
    error_of,
    counts=("/messages/count_tokens", counted),
    versions=VERSIONS,
    version_header="anthropic-version",
)
