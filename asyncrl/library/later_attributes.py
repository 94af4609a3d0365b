"""Attributes that a function or a class of a session was given after its definition.

Its source alone does not have them, and they may decide what it does: `judge.executes = True`.
"""

from __future__ import annotations

import ast
import inspect
import symtable
from typing import Any

from asyncrl.library.literals import literal

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def given_later(thing: Any, node: Definition) -> dict[str, Any]:
    """Attributes by name that `thing` has now, and that its definition does not give: all of a
    function's, and of a class's the constants that have a text: a metaclass gives others again.

    >>> def judge(answer): ...
    >>> judge.executes = True
    >>> given_later(judge, ast.parse("def judge(answer): ...").body[0])
    {'executes': True}
    """
    if not inspect.isclass(thing):
        return {name: value for name, value in _own(thing).items() if name != "__wrapped__"}
    body, bound = _constants(node), _bound(node)
    return {
        name: value
        for name, value in _own(thing).items()
        if not name.startswith("_")
        and literal(value) is not None
        and (body[name] != value if name in body else name not in bound)
    }


def _own(thing: Any) -> dict[str, Any]:
    return dict(getattr(thing, "__dict__", {}))


def _constants(node: Definition) -> dict[str, Any]:
    """Names that the body of a class sets to literals."""
    found = dict[str, Any]()
    for line in node.body:
        target = line.targets[0] if isinstance(line, ast.Assign) else None
        if isinstance(line, ast.AnnAssign) and line.value is not None:
            target = line.target
        if isinstance(target, ast.Name) and isinstance(line, ast.Assign | ast.AnnAssign):
            try:
                found[target.id] = ast.literal_eval(line.value or "")
            except ValueError:
                continue
    return found


def _bound(node: Definition) -> set[str]:
    """Names that the body of a class binds, in any way."""
    tables = symtable.symtable(ast.unparse(node), "<cell>", "exec").get_children()
    return {
        symbol.get_name()
        for table in tables
        if table.get_type() == "class"
        for symbol in table.get_symbols()
        if symbol.is_local() or symbol.is_annotated()
    }
