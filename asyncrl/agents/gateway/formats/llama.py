"""`{"name": ..., "parameters": {...}}` as a whole reply, as Llama 3 writes it, behind
`<|python_tag|>` or not; several are separated by semicolons."""

from __future__ import annotations

from asyncrl.agents.gateway.formats.tool_format import ToolFormat, WholeParser, calls_of, json_end
from asyncrl.agents.gateway.tools import ToolCall

_TAG = "<|python_tag|>"


def _may(text: str) -> bool:
    return text.startswith(("{", _TAG)) or _TAG.startswith(text)


def _read(text: str) -> list[ToolCall] | None:
    text = text.removeprefix(_TAG).strip()
    calls, at = list[ToolCall](), 0
    while at < len(text):
        end = json_end(text, at) if text[at] == "{" else None
        found = None if end is None else calls_of(text[at:end])
        if end is None or found is None:
            return None
        calls += found
        at = len(text) - len(text[end:].lstrip("; \n\t"))
    return calls


FORMAT = ToolFormat("Llama 3 JSON", (_TAG,), lambda schemas: WholeParser(_may, _read))
