"""`<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`, as Gemma 4 writes it; with other
marks, FunctionGemma."""

from __future__ import annotations

import re
from typing import Any

from asyncrl.agents.gateway.formats.tool_format import (
    NO_CALL,
    WAIT,
    CallsFound,
    MarkedParser,
    Reading,
    ToolFormat,
    json_text,
)
from asyncrl.agents.gateway.tools import ToolCall

_MARKS = {
    "<|tool_call>": ("<tool_call|>", '<|"|>'),
    "<start_function_call>": ("<end_function_call>", "<escape>"),
}
_CALL = re.compile(r"\s*call:([^\s{]+)\s*(?=\{)")
_BARE = re.compile(r"[^,\[\]{}]+")
_KEY = re.compile(r"\s*([^:,{}\[\]]+?)\s*:")
_SPACE = re.compile(r"\s*")
_DEEP = 64


class _Broken(ValueError):
    """The text is no value, or is not complete."""


def _read(text: str, whole: bool) -> Reading:
    start = next(mark for mark in _MARKS if text.startswith(mark))
    close, quote = _MARKS[start]
    if close not in text:
        return NO_CALL if whole else WAIT
    if (name := _CALL.match(text, len(start))) is None:
        return NO_CALL
    try:
        value, at = _value(text, name.end(), quote, 0)
    except _Broken:
        return NO_CALL if whole else WAIT
    at = _skip(text, at)
    arguments = json_text(value)
    if not text.startswith(close, at) or arguments is None:
        return NO_CALL if whole else WAIT
    return CallsFound([ToolCall(name[1], arguments)], at + len(close))


def _value(text: str, at: int, quote: str, depth: int) -> tuple[Any, int]:
    at = _skip(text, at)
    if depth > _DEEP:
        raise _Broken
    if text.startswith(quote, at):
        end = text.find(quote, at + len(quote))
        if end < 0:
            raise _Broken
        return text[at + len(quote) : end], end + len(quote)
    if text.startswith("{", at):
        return _object(text, at + 1, quote, depth)
    if text.startswith("[", at):
        return _list(text, at + 1, quote, depth)
    if (bare := _BARE.match(text, at)) is None:
        raise _Broken
    return _plain(bare[0].strip()), bare.end()


def _object(text: str, at: int, quote: str, depth: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    at = _skip(text, at)
    while not text.startswith("}", at):
        if text.startswith(quote, at):
            key, at = _value(text, at, quote, depth)
            at = _skip(text, at)
            if not text.startswith(":", at):
                raise _Broken
            at += 1
        elif (found := _KEY.match(text, at)) is not None:
            key, at = found[1], found.end()
        else:
            raise _Broken
        values[key], at = _value(text, at, quote, depth + 1)
        at = _after(text, at, "}")
    return values, at + 1


def _list(text: str, at: int, quote: str, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    at = _skip(text, at)
    while not text.startswith("]", at):
        value, at = _value(text, at, quote, depth + 1)
        values.append(value)
        at = _after(text, at, "]")
    return values, at + 1


def _after(text: str, at: int, close: str) -> int:
    """The place behind a comma, or of `close`."""
    at = _skip(text, at)
    if text.startswith(",", at):
        return _skip(text, at + 1)
    if not text.startswith(close, at):
        raise _Broken
    return at


def _plain(text: str) -> Any:
    words = {"true": True, "false": False, "null": None, "None": None}
    if text in words:
        return words[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


FORMAT = ToolFormat(
    "Gemma",
    (*_MARKS, *(mark for marks in _MARKS.values() for mark in marks)),
    lambda schemas: MarkedParser((*_MARKS,), _read),
)
