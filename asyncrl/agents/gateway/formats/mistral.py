"""`[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}]`, as Mistral models write it; newer
ones `[TOOL_CALLS]NAME[ARGS]JSON`, with `[CALL_ID]ID` between or not."""

from __future__ import annotations

import re

from asyncrl.agents.gateway.formats.tool_format import (
    NO_CALL,
    WAIT,
    CallsFound,
    MarkedParser,
    Reading,
    ToolFormat,
    calls_of,
    json_end,
    object_of,
)
from asyncrl.agents.gateway.tools import ToolCall

_OPEN, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_COMPACT = re.compile(r"\s*([\w.:-]+?)\s*(?:\[CALL_ID\]\s*([\w-]+)\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_BEGUN = re.compile(r"\s*(?:$|\[|[\w.:-]+\s*(?:$|\[|\{))")


def _read(text: str, whole: bool) -> Reading:
    if _BEGUN.match(text, len(_OPEN)) is None:
        return NO_CALL
    body = text[len(_OPEN) :].lstrip()
    start = len(text) - len(body)
    if body.startswith("["):
        end = json_end(text, start) if whole or "]" in body else None
        calls = None if end is None else calls_of(text[start:end])
        if end is not None and calls is not None:
            return CallsFound(calls, end)
    elif (found := _COMPACT.match(text, len(_OPEN))) is not None:
        end = json_end(text, found.end()) if whole or "}" in body else None
        arguments = None if end is None else object_of(text[found.end() : end])
        if end is not None and arguments is not None:
            return CallsFound([ToolCall(found[1], arguments, found[2] or "")], end)
    return NO_CALL if whole else WAIT


FORMAT = ToolFormat(
    "Mistral", (_OPEN, _ID, _ARGUMENTS), lambda schemas: MarkedParser((_OPEN,), _read)
)
