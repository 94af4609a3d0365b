"""OpenAI's responses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from asyncrl.agents.gateway.dialects.chat import choose
from asyncrl.agents.gateway.dialects.contents import REFUSAL, content_of
from asyncrl.agents.gateway.dialects.parameters import (
    MESSAGES,
    ModelName,
    Positive,
    Temperature,
    arguments_of,
    custom_tool,
    form_ignored,
    function_tool,
    metadata_role,
    named,
    parse,
    served,
)
from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.inner_call import (
    REFERS,
    AnswerFacts,
    AnswerPart,
    CallEnd,
    Dialect,
    Envelope,
    ModelCall,
    SampledChoice,
    text_input,
)
from asyncrl.agents.gateway.tools import Delta, Thought, ToolCall

NEUTRAL: dict[str, Any] = {
    "top_p": 1,
    "parallel_tool_calls": True,
    "truncation": "disabled",
    "top_logprobs": 0,
    "include": [],
    "background": False,
}
IGNORED = ("temperature", "metadata", "reasoning", "service_tier", "max_tool_calls")
REFUSED = {
    "conversation": "the gateway keeps none; send input, or previous_response_id",
    "prompt": "the gateway keeps no prompts; send input and instructions",
}
_HOSTED = re.compile(
    "web_search|file_search|computer|code_interpreter|image_generation|local_shell|shell|mcp"
    "|apply_patch|tool_search|namespace"
)
"""Types of tools that are no functions."""
_INPUTS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
"""Kinds of calls: the name in their events, and the field of what they are given."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", REFUSAL)
_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """The body of `/v1/responses`."""

    model: ModelName
    input: str | Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1, max_length=MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    text: dict[str, Any] | None = None
    temperature: Temperature | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    include: list[str] | None = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None
    user: str | None = None


def read(body: bytes, settings: Settings) -> ModelCall:
    """A request. Raises GatewayError."""
    asked, ignored = parse(
        body, ResponsesRequest, settings, neutral=NEUTRAL, ignored=IGNORED, refused=REFUSED
    )
    served(asked.model, settings)
    text = asked.text or {}
    ignored += form_ignored(text.get("format"), "text.format", settings)
    ignored += [f"text.{name}" for name in text if name != "format"]
    tools, left = _tools(asked.tools or [], settings)
    texts = [tool.get("name") for tool in asked.tools or [] if tool.get("type") == "custom"]
    tools, chosen = choose(tools, asked.tool_choice, settings, _HOSTED)
    head: list[dict[str, Any]] = []
    if asked.instructions:
        head.append({"role": "system", "content": asked.instructions})
    return ModelCall(
        model=asked.model,
        head=head,
        messages=named(_messages(asked.input, settings)),
        tools=tools,
        budget=asked.max_output_tokens,
        capped=True,
        stream=bool(asked.stream),
        ignored=(*ignored, *left, *chosen),
        after=asked.previous_response_id or "",
        role=metadata_role(asked.metadata),
        keeps=asked.store is not False,
        texts=frozenset(map(str, texts)),
        asked={
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "previous_response_id": asked.previous_response_id,
            "tools": asked.tools or [],
            "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
            "metadata": asked.metadata or {},
            "store": asked.store is not False,
            "user": asked.user,
        },
    )


def _tools(
    tools: Sequence[Mapping[str, Any]], settings: Settings
) -> tuple[list[dict[str, Any]], list[str]]:
    """The functions for the chat template, and the tools of OpenAI's servers, which are not
    here."""
    found, left = list[dict[str, Any]](), list[str]()
    for at, tool in enumerate(tools):
        kind = tool.get("type")
        if kind == "function":
            found.append(
                function_tool(at, tool.get("name"), tool.get("description"), tool.get("parameters"))
            )
        elif kind == "custom":
            shown, without = custom_tool(at, tool)
            found.append(shown)
            left += without
        elif settings.strict or not (isinstance(kind, str) and _HOSTED.match(kind)):
            raise bad(f"tools[{at}] has the type {kind!r}, which is no function", "tools")
        else:
            left.append(f"tools.{kind}")
    return found, left


def _messages(asked: str | Sequence[Mapping[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """The messages of input items. What one answer had, text and calls, is one message again."""
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}]
    messages: list[dict[str, Any]] = []
    joins = False
    for at, item in enumerate(asked):
        where, kind = f"input[{at}]", item.get("type", "message")
        last = messages[-1] if joins and messages and messages[-1]["role"] == "assistant" else None
        if kind == "reasoning":
            continue
        if kind == "item_reference":
            if last is None:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            last.setdefault(REFERS, []).append(str(item.get("id")))
            joins = True
        elif kind == "message":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                raise bad(f"{where}: there is no role {item.get('role')!r}", "input")
            text = content_of(item.get("content"), where, _TEXTS, role, settings)
            if role == "assistant" and last is not None and last.keys() & {"tool_calls", REFERS}:
                last["content"] += text
            else:
                messages.append({"role": role, "content": text})
            joins = role == "assistant"
        elif kind in ("function_call", "custom_tool_call"):
            if last is None:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            last.setdefault("tool_calls", []).append(_call(where, item, settings))
            joins = True
        elif kind in ("function_call_output", "custom_tool_call_output"):
            messages.append(_result(where, item, settings))
            joins = False
        else:
            raise bad(f"{where}: an item of type {kind!r} cannot be read", "input")
    if not messages:
        raise bad("input has no message", "input")
    return messages


def _call(where: str, item: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    kind, field = item["type"], "input" if item["type"] == "custom_tool_call" else "arguments"
    number, name, text = item.get("call_id"), item.get("name"), item.get(field)
    if not (isinstance(number, str) and isinstance(name, str) and isinstance(text, str)):
        raise bad(f"{where}: a {kind} must have a call_id, a name and {field}", "input")
    custom = field == "input"
    arguments = {"input": text} if custom else arguments_of(where, name, text, settings)
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(where: str, item: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    number, output = item.get("call_id"), item.get("output")
    if not isinstance(number, str):
        raise bad(f"{where}: a {item['type']} must have a call_id", "input")
    text = content_of(output, where, _TEXTS, "tool", settings)
    return {"role": "tool", "content": text, "tool_call_id": number}


def _as_part(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item of an answer as a message."""
    if item["type"] == "message":
        return {"content": item["content"][0]["text"]}
    if item["type"] == "reasoning":
        return {}
    custom = item["type"] == "custom_tool_call"
    given = {"input": item["input"]} if custom else msgspec.json.decode(item["arguments"])
    function = {"name": item["name"], "arguments": given}
    return {"tool_calls": [{"id": item["call_id"], "type": "function", "function": function}]}


class ResponsesForm(Envelope):
    """Forms of `/v1/responses`."""

    def __init__(self, call: ModelCall, facts: AnswerFacts) -> None:
        super().__init__(call, facts)
        self._items: list[dict[str, Any]] = []
        self._open = False
        self._events = 0

    @property
    def id(self) -> str:
        return f"resp_{self._facts.number}"

    @property
    def items(self) -> dict[str, dict[str, Any]]:
        return {item["id"]: _as_part(item) for item in self._items}

    def whole(self, choices: Sequence[SampledChoice]) -> bytes:
        (choice,) = choices
        for delta in [delta for part in choice.parts for delta in part.deltas]:
            self._take(delta)
        self._close()
        return msgspec.json.encode(self._response(choice.end))

    def part(self, index: int, read: AnswerPart) -> bytes:
        return self._begin() + b"".join(map(self._take, read.deltas))

    def last(self, index: int, end: CallEnd) -> bytes:
        said = self._begin() + self._close()
        name = "incomplete" if end.finish == "length" else "completed"
        return said + self._event(f"response.{name}", response=self._response(end))

    def failed(self, error: GatewayError) -> bytes:
        response = self._response(None) | {
            "status": "failed",
            "error": {"code": "server_error", "message": error.message},
        }
        return self._begin() + self._event("response.failed", response=response)

    def _begin(self) -> bytes:
        if self._events:
            return b""
        said = self._event("response.created", response=self._response(None))
        return said + self._event("response.in_progress", response=self._response(None))

    def _take(self, delta: Delta) -> bytes:
        """The events of a delta, which is added to the items."""
        if isinstance(delta, Thought) and not delta.text:
            return b""
        kind = (
            ("custom_tool_call" if delta.name in self._call.texts else "function_call")
            if isinstance(delta, ToolCall)
            else "reasoning"
            if isinstance(delta, Thought)
            else "message"
        )
        said = b""
        if not self._open or self._items[-1]["type"] != kind or isinstance(delta, ToolCall):
            said = self._close() + self._add(kind, delta)
        item, at = self._items[-1], len(self._items) - 1
        place = {"item_id": item["id"], "output_index": at}
        if isinstance(delta, ToolCall):
            name, field = _INPUTS[kind]
            item[field] = text_input(delta) if field == "input" else delta.arguments
            return said + self._event(f"response.{name}.delta", **place, delta=item[field])
        place["content_index"] = 0
        text = delta if isinstance(delta, str) else delta.text
        item["content"][0]["text"] += text
        if kind == "reasoning":
            return said + self._event("response.reasoning_text.delta", **place, delta=text)
        return said + self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    def _add(self, kind: str, delta: Delta) -> bytes:
        """Begin an item."""
        at = len(self._items)
        number = f"{self._facts.number}{at}"
        item: dict[str, Any]
        if isinstance(delta, ToolCall):
            item = {"type": kind, "call_id": delta.id, "name": delta.name, _INPUTS[kind][1]: ""}
            if kind == "function_call":
                item |= {"id": f"fc_{number}", "status": "in_progress"}
            else:
                item["id"] = f"ctc_{number}"
        elif kind == "reasoning":
            item = {"id": f"rs_{number}", "type": kind, "summary": [], "content": []}
        else:
            item = {
                "id": f"msg_{number}",
                "type": kind,
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
        self._items.append(item)
        self._open = True
        said = self._event("response.output_item.added", output_index=at, item=item)
        if kind in _INPUTS:
            return said
        part: dict[str, Any] = (
            {"type": "reasoning_text", "text": ""}
            if kind == "reasoning"
            else {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        )
        said += self._event(
            "response.content_part.added",
            item_id=item["id"],
            output_index=at,
            content_index=0,
            part=part,
        )
        item["content"].append(part)
        return said

    def _close(self) -> bytes:
        """End the open item."""
        if not self._open:
            return b""
        self._open = False
        item, at = self._items[-1], len(self._items) - 1
        place: dict[str, Any] = {"item_id": item["id"], "output_index": at}
        if "status" in item:
            item["status"] = "completed"
        if item["type"] in _INPUTS:
            name, field = _INPUTS[item["type"]]
            given = {field: item[field]}
            if item["type"] == "function_call":  # some releases of the client require it
                given["name"] = item["name"]
            said = self._event(f"response.{name}.done", **place, **given)
        else:
            part = item["content"][0]
            reasons = item["type"] == "reasoning"
            more: dict[str, Any] = {} if reasons else {"logprobs": []}
            name = "reasoning_text" if reasons else "output_text"
            place["content_index"] = 0
            said = self._event(f"response.{name}.done", **place, text=part["text"], **more)
            said += self._event("response.content_part.done", **place, part=part)
        return said + self._event("response.output_item.done", output_index=at, item=item)

    def _event(self, name: str, /, **content: Any) -> bytes:
        data = {"type": name, "sequence_number": self._events, **content}
        self._events += 1
        return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

    def _response(self, end: CallEnd | None) -> dict[str, Any]:
        cut = end is not None and end.finish == "length"
        usage = None
        if end is not None:
            usage = {
                "input_tokens": end.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": end.tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": end.prompt_tokens + end.tokens,
            }
        status = "in_progress" if end is None else "incomplete" if cut else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._facts.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self._call.model,
            "output": [] if end is None else self._items,
            "parallel_tool_calls": True,
            "reasoning": {"effort": None, "summary": None},
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "top_p": None,
            "truncation": "disabled",
            "usage": usage,
            **self._call.asked,
        }


DIALECT = Dialect("/responses", read, ResponsesForm, GatewayError.body)
