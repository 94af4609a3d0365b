"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, as
Qwen3-Coder, Qwen3.5 and later ones, and Step models write it. A value has a line of its own."""

from __future__ import annotations

import re
from functools import partial

from asyncrl.agents.gateway.formats.tool_format import (
    NO_CALL,
    WAIT,
    CallsFound,
    MarkedParser,
    Reading,
    ToolFormat,
    json_text,
)
from asyncrl.agents.gateway.formats.values import property_of, typed
from asyncrl.agents.gateway.tools import Schemas, ToolCall

_OPEN, _FUNCTION, _CLOSE = "<tool_call>", "<function=", "</tool_call>"
_NAME = re.compile(r"\s*<function=([^>\s]+)\s*>")
_PARAMETER = re.compile(
    r"\s*<parameter=([^>\n]+)>(.*?)</parameter>(?=\s*(?:<parameter=|</function>))", re.DOTALL
)
_END = re.compile(r"\s*</function>")


def _read(text: str, whole: bool, schemas: Schemas) -> Reading:
    start = len(_OPEN) if text.startswith(_OPEN) else 0
    rest = text[start:].lstrip()
    if not rest.startswith(_FUNCTION):
        return WAIT if _FUNCTION.startswith(rest) and not whole else NO_CALL
    last = text.rfind("</function>")
    if last < 0:
        return NO_CALL if whole else WAIT
    name = _NAME.match(text, start)
    if name is None:
        return NO_CALL
    at, values = name.end(), dict[str, object]()
    while (found := _PARAMETER.match(text, at)) is not None:
        key, value = found[1].strip(), found[2].removeprefix("\n").removesuffix("\n")
        values[key] = typed(value, property_of(schemas.get(name[1]), key))
        at = found.end()
    if (end := _END.match(text, at)) is None:
        return NO_CALL if whole else WAIT
    at = end.end()
    behind = text[at:].lstrip()
    if start:
        if behind.startswith(_CLOSE):
            at = len(text) - len(behind) + len(_CLOSE)
        elif not whole and _CLOSE.startswith(behind):
            return WAIT
    arguments = json_text(values)
    return NO_CALL if arguments is None else CallsFound([ToolCall(name[1], arguments)], at)


FORMAT = ToolFormat(
    "Qwen3-Coder XML",
    (_OPEN, _CLOSE, _FUNCTION, "</function>", "<parameter=", "</parameter>"),
    lambda schemas: MarkedParser((_OPEN, _FUNCTION), partial(_read, schemas=schemas)),
)
