"""`<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>
</minimax:tool_call>`, as MiniMax-M2 writes it."""

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

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE = re.compile(r'\s*<invoke name="?([^">]+)"?>')
_PARAMETER = re.compile(
    r'\s*<parameter name="?([^">]+)"?>(.*?)</parameter>(?=\s*(?:<parameter name=|</invoke>))',
    re.DOTALL,
)
_INVOKED, _END = re.compile(r"\s*</invoke>"), re.compile(r"\s*</minimax:tool_call>")


def _read(text: str, whole: bool, schemas: Schemas) -> Reading:
    if _CLOSE not in text:
        return NO_CALL if whole else WAIT
    at, calls = len(_OPEN), list[ToolCall]()
    while (name := _INVOKE.match(text, at)) is not None:
        at, values = name.end(), dict[str, object]()
        while (found := _PARAMETER.match(text, at)) is not None:
            values[found[1]] = typed(found[2], property_of(schemas.get(name[1]), found[1]))
            at = found.end()
        end, arguments = _INVOKED.match(text, at), json_text(values)
        if end is None or arguments is None:
            return NO_CALL if whole else WAIT
        calls.append(ToolCall(name[1], arguments))
        at = end.end()
    closed = _END.match(text, at)
    return NO_CALL if closed is None or not calls else CallsFound(calls, closed.end())


FORMAT = ToolFormat(
    "MiniMax-M2",
    (_OPEN, _CLOSE, "<invoke name=", "</invoke>", "<parameter name="),
    lambda schemas: MarkedParser((_OPEN,), partial(_read, schemas=schemas)),
)
