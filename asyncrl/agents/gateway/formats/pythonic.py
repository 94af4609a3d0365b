"""`[name(key="value", other=1), ...]` as a whole reply, as Llama 3.2 and 4 and Olmo 3 write it,
between `<|python_start|>` and `<|python_end|>` or not. It is read as Python's syntax, and nothing
is run."""

from __future__ import annotations

import ast
import re
from typing import Any

from asyncrl.agents.gateway.formats.tool_format import ToolFormat, WholeParser, json_text
from asyncrl.agents.gateway.tools import ToolCall

_START, _END = "<|python_start|>", "<|python_end|>"
_FUNCTIONS = ("<function_calls>", "</function_calls>")
_BEGUN = re.compile(r"\[\s*(?:$|[A-Za-z_][\w.]*\s*(?:$|\())")
_NAMES = {"true": True, "false": False, "null": None}
_LONGEST = 1 << 16


def _may(text: str) -> bool:
    marks = (_START, _FUNCTIONS[0])
    return (
        text.startswith(marks) or any(m.startswith(text) for m in marks) or bool(_BEGUN.match(text))
    )


def _read(text: str) -> list[ToolCall] | None:
    for start, end in ((_START, _END), _FUNCTIONS):
        text = text.removeprefix(start).removesuffix(end).strip()
    if not text.startswith("["):
        text = f"[{','.join(text.splitlines())}]"
    if len(text) > _LONGEST:
        return None
    try:
        tree = ast.parse(text, mode="eval").body
        assert isinstance(tree, ast.List)
        return [_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    values = {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}
    arguments = json_text(values)
    if arguments is None or len(values) != len(node.keywords):
        raise ValueError("no JSON")
    return ToolCall(_name(node.func), arguments)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise ValueError("no name")


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.Name(name) if name in _NAMES:
            return _NAMES[name]
        case ast.List(elts) | ast.Tuple(elts):
            return [_value(inner) for inner in elts]
        case ast.Dict(keys, values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is no text")


FORMAT = ToolFormat("pythonic", (_START, _END), lambda schemas: WholeParser(_may, _read))
