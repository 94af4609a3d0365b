"""`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`, as GLM-4.5 and
later ones write it, with or without line breaks between the parts."""

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

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"\s*([^\s<>{}\[\]\"]+)\s*(?=<arg_key>|</tool_call>)")
_ARGUMENT = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>"
    r"(?=\s*(?:<arg_key>|</tool_call>))",
    re.DOTALL,
)
_END = re.compile(r"\s*</tool_call>")
_BEGUN = re.compile(r"\s*[^\s<>{}\[\]\"]*\s*(?:<.*)?", re.DOTALL)


def _read(text: str, whole: bool, schemas: Schemas) -> Reading:
    if _BEGUN.fullmatch(text, len(_OPEN)) is None:
        return NO_CALL
    if _CLOSE not in text:
        return NO_CALL if whole else WAIT
    if (name := _NAME.match(text, len(_OPEN))) is None:
        return NO_CALL
    at, values = name.end(), dict[str, object]()
    while (found := _ARGUMENT.match(text, at)) is not None:
        key = found[1].strip()
        values[key] = typed(found[2], property_of(schemas.get(name[1]), key))
        at = found.end()
    if (end := _END.match(text, at)) is None:
        return NO_CALL if whole else WAIT
    arguments = json_text(values)
    return NO_CALL if arguments is None else CallsFound([ToolCall(name[1], arguments)], end.end())


FORMAT = ToolFormat(
    "GLM-4.5",
    (_OPEN, _CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    lambda schemas: MarkedParser((_OPEN,), partial(_read, schemas=schemas)),
)
