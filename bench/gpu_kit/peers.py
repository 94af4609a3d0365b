"""Other processes of a check, each of which runs one function of a module and gives back what that
returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from .warm import CONTEXT

PATIENCE_S = 240.0
"""Seconds that a peer may take to say something. The check's own limit is nearer."""


class Peer:
    """The other end of a process of its own."""

    def __init__(self, end: Connection) -> None:
        self._end = end

    def said(self) -> Any:
        """The next thing that it says. Raises RuntimeError with its error, or where it died or said
        nothing in `PATIENCE_S`."""
        if not self._end.poll(PATIENCE_S):
            raise RuntimeError(f"a peer said nothing for {PATIENCE_S:g} s")
        try:
            kind, value = self._end.recv()
        except EOFError:
            raise RuntimeError("a peer died") from None
        if kind == "error":
            raise RuntimeError(f"a peer failed: {value}")
        return value


@contextmanager
def peer(work: Callable[..., Any], *given: Any) -> Iterator[Peer]:
    """Have a process do this work; it is gone at the end of the block."""
    mine, theirs = CONTEXT.Pipe()
    ours = os.getsid(0), os.getpgid(0)
    process = CONTEXT.Process(target=_run, args=(theirs, *ours, work, given), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Peer(mine)
        process.join(PATIENCE_S)
    finally:
        process.kill()
        process.join()
        mine.close()


def _run(
    end: Connection,
    session: int,
    group: int,
    work: Callable[..., Any],
    given: tuple[Any, ...],
) -> None:
    if session == os.getsid(0):  # it is not where a test's server forks this
        os.setpgid(0, group)  # whoever ends that ends this
    try:
        end.send(("found", work(*given)))
    except Exception as error:  # noqa: BLE001 the other side raises it
        end.send(("error", f"{type(error).__name__}: {error}"))
    end.close()
