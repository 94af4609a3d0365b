"""A real server whose processes are forked: `forked_server.py -m MODULE …`, or `… FILE …`.

SGLang and vLLM spawn two more processes each, which import everything again: 20 of the 33 seconds
of processor time that a start takes. The servers of runs, and vLLM's that tests share, are forked
themselves (`warm_process.launch_of`), which leaves two. SGLang's server that tests share is started
as a run starts one, and one of two ranks with its imports.
"""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from multiprocessing.context import BaseContext
from pathlib import Path

_context = multiprocessing.get_context


def _forked(method: str | None = None) -> BaseContext:
    """The context of multiprocessing that forks, whichever is asked for."""
    return _context("fork")


def _ignored(method: str | None, force: bool = False) -> None:
    """Take no other method."""


def main() -> None:
    """Run the server in this process."""
    multiprocessing.set_start_method("fork")
    multiprocessing.get_context = _forked  # type: ignore[assignment]
    multiprocessing.set_start_method = _ignored
    first, *rest = sys.argv[1:]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
