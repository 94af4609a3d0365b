"""The display of a run in the cell of a notebook: one output that is replaced, in plain text.

It needs no widget and no extension: every front end shows IPython's messages, and a saved notebook
has only the last picture."""

from __future__ import annotations

import io
import sys
from typing import Any

from rich.console import Console, RenderableType

from asyncrl.runtime.output import Output

WIDTH = 110
"""Characters of a line in a cell."""
EVERY_S = 0.5
KERNEL = "ZMQInteractiveShell"
"""IPython's class of a kernel; that of a terminal is a terminal like any other."""


def in_notebook() -> bool:
    """True if the code of this process comes from the cells of a notebook."""
    ipython = sys.modules.get("IPython")  # who is in a notebook has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == KERNEL


def console_here() -> Console:
    """The console of this process: plain text on its standard output. In a notebook rich would make
    an output of each line."""
    stdout: Any = Output(sys.stdout)
    if in_notebook():
        return Console(file=stdout, force_jupyter=False, force_terminal=False, width=WIDTH)
    return Console(file=stdout)


class CellOutput:
    """A picture in a cell that is replaced by the next one, as `rich.live.Live` is on a
    terminal."""

    def __init__(self) -> None:
        self._handle: Any = None

    def start(self) -> None:
        """Nothing is shown before the first picture."""

    def update(self, picture: RenderableType, *, refresh: bool = True) -> None:
        """Show a picture in place of the last one."""
        text = io.StringIO()
        Console(file=text, force_jupyter=False, force_terminal=False, width=WIDTH).print(picture)
        data = {"text/plain": text.getvalue().rstrip()}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def stop(self) -> None:
        """Leave the last picture in place."""
