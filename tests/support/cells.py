"""Cells of a notebook, run as IPython runs them: one after another in the module `__main__`, with
the source of each kept for `inspect`. `python -m cells NOTEBOOK.ipynb` runs a whole one."""

from __future__ import annotations

import ast
import json
import linecache
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class Cells:
    """A session of a notebook. Its names are those of `module`."""

    def __init__(self) -> None:
        self.module = ModuleType("__main__")
        self._count = 0

    def run(self, text: str) -> Any:
        """Run a cell. Returns what its last line is worth, if that is an expression."""
        self._count += 1
        name = f"/tmp/ipykernel_1/{self._count}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        tree = ast.parse(text)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), vars(self.module))
        if last is None:
            return None
        assert isinstance(last, ast.Expr)
        return eval(compile(ast.Expression(last.value), name, "eval"), vars(self.module))  # noqa: S307

    def __getitem__(self, name: str) -> Any:
        return vars(self.module)[name]


def code_cells(notebook: Path) -> list[str]:
    """The text of each cell of code."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def main() -> None:
    session = Cells()
    sys.modules["__main__"] = session.module
    for text in code_cells(Path(sys.argv[1])):
        if (worth := session.run(text)) is not None:
            print(repr(worth))


if __name__ == "__main__":
    main()
