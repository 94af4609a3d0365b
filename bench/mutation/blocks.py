"""Blocks of a source file: statements that run one after the other. A block has a name that a
change elsewhere in the file leaves as it is (`Steps.take#2`: the third block of that method).

A copy of the product in which each block marks that it was reached tells which tests and which
seeds reach a mutant. The marks are bytes of a mapped file, so that processes that are forked,
started or killed by a test count too.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import NamedTuple

MODULE = ""
"""The block of what runs when the module is imported."""

MARKS = '''"""Marks of the blocks that were reached, shared by all processes of this copy."""
import mmap, os
try:
    _file = os.open({path!r}, os.O_RDWR)
    marks = mmap.mmap(_file, 0)
    os.close(_file)
except OSError:  # a process that may not open files
    marks = bytearray({size})
'''


class Mark(NamedTuple):
    """A line to be put before line `line` (from 1)."""

    line: int
    indent: str
    block: str


class Blocks:
    """The block of each statement of a file, and where each block would be marked.

    >>> found = Blocks("def f(x):\\n    if x:\\n        return 1\\n    return 2\\n")
    >>> [(mark.line, mark.block) for mark in found.marks]
    [(2, 'f#0'), (3, 'f#1'), (4, 'f#2')]
    """

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.of: dict[ast.stmt, str] = {}
        self.marks: list[Mark] = []
        self._lines = source.splitlines()
        self._count: Counter[str] = Counter()
        self._scripted = scripted(self.tree)
        self._suite(self.tree.body, "", MODULE, marked=False)

    def _suite(self, body: list[ast.stmt], scope: str, block: str, *, marked: bool) -> None:
        due = marked
        for statement in body:
            if due and (mark := self._mark(statement, scope)) is not None:
                self.marks.append(mark)
                block, due = mark.block, False
            self.of[statement] = block
            match statement:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    inner = f"{scope}.{name}" if scope else name
                    # TorchScript compiles no mark: what is compiled counts as imported
                    self._suite(statement.body, inner, block, marked=name not in self._scripted)
                case ast.ClassDef(name=name):
                    inner = f"{scope}.{name}" if scope else name
                    self._suite(statement.body, inner, block, marked=False)
                case _:
                    for suite in suites(statement):
                        self._suite(suite, scope, block, marked=marked)
                        due = marked  # one of them may have left the function

    def _mark(self, statement: ast.stmt, scope: str) -> Mark | None:
        """None where no line can stand before the statement, or where none is needed."""
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return None  # a docstring, or `...`
        decorators = getattr(statement, "decorator_list", [])
        line = min([statement.lineno, *(one.lineno for one in decorators)])
        text = self._lines[line - 1]
        before, after = text[: statement.col_offset], text[statement.col_offset :]
        if not decorators and (before.strip() or after.startswith("elif")):
            return None
        indent = text[: len(text) - len(text.lstrip())]
        number = self._count[scope]
        self._count[scope] += 1
        return Mark(line, indent, f"{scope}#{number}")


def scripted(tree: ast.Module) -> set[str]:
    """The functions that a file gives to `torch.jit.script`."""
    return {
        argument.id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.jit.script"
        for argument in call.args
        if isinstance(argument, ast.Name)
    }


def suites(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The suites of a compound statement."""
    found = [getattr(statement, name, []) for name in ("body", "orelse")]
    found += [handler.body for handler in getattr(statement, "handlers", [])]
    found += [case.body for case in getattr(statement, "cases", [])]
    return [suite for suite in [*found, getattr(statement, "finalbody", [])] if suite]


def marked(source: str, first: int) -> tuple[str, list[str]]:
    """The source with a mark in each block, numbered from `first`, and the blocks' names."""
    found = Blocks(source)
    lines = source.splitlines(keepends=True)
    numbered = list(enumerate(found.marks, first))
    for number, mark in sorted(numbered, key=lambda one: -one[1].line):
        lines.insert(mark.line - 1, f"{mark.indent}_marks[{number}] = 1\n")
    if found.marks:
        lines.insert(_import_line(found.tree) - 1, "from reached_blocks import marks as _marks\n")
    return "".join(lines), [mark.block for mark in found.marks]


def _import_line(tree: ast.Module) -> int:
    for statement in tree.body:
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not docstring and not future:
            decorators = getattr(statement, "decorator_list", [])
            return min([statement.lineno, *(one.lineno for one in decorators)])
    raise ValueError("a file without statements has no blocks")
