"""Processes of checks, and of their peers, that are forked from one that has imported what they
need (`preloaded`). It never touches CUDA, so each of its forks may. The standard library alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from . import child
from .check import Check, Lacks, Place

GRACE_S = 5
"""Seconds after its limit when a check ends by itself, because nobody is left to end it."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([f"{__package__}.preloaded"])


class Forked:
    """A process that leads a group of its own, and writes what it says to a file."""

    def __init__(self, log: Path, work: Callable[..., None], *given: Any) -> None:
        self._process = CONTEXT.Process(target=_led, args=(log, work, given))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def wait(self, seconds: float | None = None) -> int | None:
        """Its status, negative for a signal; None where it has not ended in time."""
        self._process.join(seconds)
        return self._process.exitcode


def _led(log: Path, work: Callable[..., None], given: tuple[Any, ...]) -> None:
    os.setpgid(0, 0)
    # Its peers are forks of the process that it is one of, whose address it has. Python means that
    # to be so, but starts another (3.11 to 3.14), which would import everything.
    vars(forkserver._forkserver)["ensure_running"] = lambda: None  # type: ignore[attr-defined]
    with log.open("ab", buffering=0) as written:
        os.dup2(written.fileno(), 1)
        os.dup2(written.fileno(), 2)
    work(*given)


def checking(of: Callable[[str], Check], device: str, *, small: bool) -> Callable[..., Forked]:
    """A function that starts the process of a check by its name, in a folder."""

    def start(name: str, folder: Path, answer: Path, log: Path, seconds: float) -> Forked:
        place = Place(device, folder, small)
        return Forked(log, _check, of(name), place, answer, int(seconds) + GRACE_S)

    return start


def _check(check: Check, place: Place, answer: Path, seconds: int) -> None:
    signal.alarm(seconds)
    child.run(check, place, answer)


def look(seconds: float) -> dict[str, object]:
    """Facts of the machine, from a process of its own: this one never imports torch. Raises
    Lacks."""
    mine, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_look, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        if not mine.poll(seconds):
            raise Lacks(f"torch could not be imported in {seconds:.0f} s")
        found: dict[str, object] | str = mine.recv()
    except EOFError:
        found = "no word of it"
    finally:
        process.kill()
        process.join()
    if isinstance(found, str):
        raise Lacks(f"torch and transformers cannot be used: {found}")
    return found


def _look(end: Connection) -> None:
    try:
        end.send(child.machine())
    except Exception as error:  # noqa: BLE001 the other side says it
        end.send(f"{type(error).__name__}: {' '.join(str(error).split())}")
