"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Qwen and Hermes models write it;
with other marks around the same JSON, or around a list of it, Granite, Nemotron and Phi models."""

from __future__ import annotations

from asyncrl.agents.gateway.formats.tool_format import (
    NO_CALL,
    WAIT,
    CallsFound,
    MarkedParser,
    Reading,
    ToolFormat,
    calls_of,
    cut_in_string,
)

TAGS = {
    "<tool_call>": "</tool_call>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<|tool_call|>": "<|/tool_call|>",
}


class Hermes(MarkedParser):
    """White space around a call is part of the form, and not of the text."""

    def __init__(self) -> None:
        super().__init__((*TAGS,), _read)


def _read(text: str, whole: bool) -> Reading:
    start, close = next(tag for tag in TAGS.items() if text.startswith(tag[0]))
    end = text.find(close)
    while end >= 0:
        body = text[len(start) : end]
        if (calls := calls_of(body)) is not None:
            return CallsFound(calls, end + len(close))
        if not cut_in_string(body):
            return NO_CALL
        end = text.find(close, end + 1)  # the mark was in a string
    if whole and start == "<|tool_call|>" and (calls := calls_of(text[len(start) :])):
        return CallsFound(calls, len(text))  # Granite writes no end
    return NO_CALL if whole else WAIT


FORMAT = ToolFormat("Hermes JSON", (*TAGS, *TAGS.values()), lambda schemas: Hermes())
