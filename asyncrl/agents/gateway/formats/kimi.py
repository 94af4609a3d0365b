"""`<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>JSON<|tool_call_end|>` in a
section, as Kimi K2 writes it. The number of a call is the model's own."""

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

_ALL, _END_ALL = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_ONE, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?([^\s:]+):[0-9]+")


def _read(text: str, whole: bool) -> Reading:
    for mark in (_ALL, _END_ALL):
        if text.startswith(mark):
            return CallsFound([], len(mark))
    end = text.find(_END)
    while end >= 0:
        number, sep, rest = text[len(_ONE) : end].partition(_ARGUMENTS)
        arguments, name = object_of(rest), _ID.fullmatch(number.strip())
        if not sep or name is None:
            return NO_CALL
        if arguments is not None:
            return CallsFound([ToolCall(name[1], arguments, number.strip())], end + len(_END))
        end = text.find(_END, end + 1)
    return NO_CALL if whole else WAIT


FORMAT = ToolFormat(
    "Kimi K2",
    (_ALL, _END_ALL, _ONE, _ARGUMENTS, _END),
    lambda schemas: MarkedParser((_ALL, _END_ALL, _ONE), _read),
)
