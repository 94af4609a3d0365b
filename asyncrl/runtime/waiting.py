"""Words on what takes long before a run starts: a folder on a slow disk, a module of the user's
that hangs. Invariant: on a terminal two seconds of silence are followed by a word, which names the
work; elsewhere a minute is, since an error there is one sentence for scripts."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asyncrl.runtime.output import complain

TERMINAL_S, AFTER_S = 2.0, 60.0
"""Seconds of silence, at most: on a terminal, and elsewhere."""

Doing = Callable[[str], None]
"""Called with the next work, as `reading the prompts`."""


@contextmanager
def waiting(after_s: float | None = None, say: Callable[[str], None] = complain) -> Iterator[Doing]:
    """Say what is being done in the block each time that it has been silent for `after_s` seconds,
    and no work twice in a row. The block names its work by the function that it gets."""
    over, work = threading.Event(), [""]
    if after_s is None:
        after_s = TERMINAL_S if sys.stderr.isatty() else AFTER_S

    def watch() -> None:
        said = ""
        while not over.wait(after_s):
            if work[0] != said:
                said = work[0]
                say(f"{said} …")

    def doing(what: str) -> None:
        work[0] = what

    thread = threading.Thread(target=watch, name="waiting", daemon=True)
    thread.start()
    try:
        yield doing
    finally:
        over.set()
        thread.join()
