"""`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, then the JSON between
three backquotes, as DeepSeek V3 and R1 write it; `NAME<｜tool▁sep｜>JSON`, as V3.1 does."""

from __future__ import annotations

import re

from asyncrl.agents.gateway.formats.tool_format import (
    NO_CALL,
    WAIT,
    CallsFound,
    MarkedParser,
    Reading,
    ToolFormat,
    object_of,
)
from asyncrl.agents.gateway.tools import ToolCall

_ALL, _END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _SEP, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCED = re.compile(r"\s*([^\s]+)\s*```json\s*\n(.*)\n\s*```\s*", re.DOTALL)


def _read(text: str, whole: bool) -> Reading:
    for mark in (_ALL, _END_ALL):
        if text.startswith(mark):
            return CallsFound([], len(mark))
    end = text.find(_END)
    while end >= 0:
        if (call := _call(text[len(_ONE) : end])) is not None:
            return CallsFound([call], end + len(_END))
        end = text.find(_END, end + 1)
    if whole and (call := _call(text[len(_ONE) :])) is not None:
        return CallsFound([call], len(text))
    return NO_CALL if whole else WAIT


def _call(body: str) -> ToolCall | None:
    kind, sep, rest = body.partition(_SEP)
    if not sep:
        return None
    if kind.strip() == "function" and (found := _FENCED.fullmatch(rest)) is not None:
        name, arguments = found[1], object_of(found[2])
    else:
        name, arguments = kind.strip(), object_of(rest)
    return None if arguments is None or not name else ToolCall(name, arguments)


FORMAT = ToolFormat(
    "DeepSeek",
    (_ALL, _END_ALL, _ONE, _SEP, _END),
    lambda schemas: MarkedParser((_ALL, _END_ALL, _ONE), _read),
)
