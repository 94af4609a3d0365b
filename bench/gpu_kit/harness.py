"""Runs checks, each in a process group of its own. Invariant: no check takes longer than it may, or
more than itself with it; and the report is whole at any moment, whatever is killed when.

The report names every check from the start, and is replaced after each. SIGINT and SIGTERM end the
running check, and the report says so.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from .check import (
    Check,
    Failed,
    Missed,
    Number,
    Ok,
    Skipped,
    TimedOut,
    Verdict,
    as_json,
    judged,
)

NOT_REACHED = "the kit was ended before it"
NO_TIME = "no time left"
INTERRUPTED = "interrupted"
SAID = 200
"""Characters of an error that are shown."""
TAIL_BYTES = 8192
"""Bytes at the end of what a check wrote that its last words are looked for in."""


class Running(Protocol):
    """A process that leads a group of its own."""

    pid: int

    def wait(self, seconds: float | None = None) -> int | None:
        """Its status, negative for a signal; None where it has not ended in time."""
        ...


Start = Callable[[str, Path, Path, Path, float], Running]
"""Starts the process of the check of this name, in this folder, which writes its answer to this
file and all that it says to that one, and has so many seconds."""


class Interrupted(BaseException):
    """A signal asked the kit to end."""


def last_words(written: bytes) -> str:
    """The last line that says anything, cut to `SAID` characters.

    >>> last_words(b"Traceback\\n  in f\\nValueError: two  ranks\\n\\n")
    'ValueError: two ranks'
    """
    lines = [" ".join(line.split()) for line in written.decode(errors="replace").splitlines()]
    return next((line[:SAID] for line in reversed(lines) if line), "")


def run_one(name: str, seconds: float, start: Start) -> Verdict:
    """Run one check for at most so many seconds; nothing that it started in its process group is
    left afterwards."""
    with TemporaryDirectory(prefix="asyncrl-gpu-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        answer, log = folder / "answer.json", folder / "log"
        log.touch()
        process = start(name, folder, answer, log, seconds)
        ended = False
        try:
            ended = _ended(process.pid, seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait() or 0
        with log.open("rb") as written:
            written.seek(max(0, log.stat().st_size - TAIL_BYTES))
            last = last_words(written.read())
        if not ended:
            return TimedOut(seconds, last)
        if answer.exists():
            return _read(answer)
        if status < 0:
            named = signal.Signals(-status).name
            return Failed(f"killed by {named}" + (f"; {last}" if last else ""))
        return Failed(last or f"ended with status {status} and no answer")


def _ended(pid: int, seconds: float) -> bool:
    """Wait for a process to end, without taking notice of its end: True if it has in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _read(answer: Path) -> Verdict:
    found = json.loads(answer.read_text())
    if "lacks" in found:
        return Skipped(found["lacks"])
    if "error" in found:
        return Failed(last_words(found["error"].encode()))
    return judged([Number(**number) for number in found["numbers"]])


class Report:
    """The verdicts in a file, `path`: each check from the start, as skipped until it has one."""

    def __init__(self, path: Path, machine: dict[str, Any], checks: Sequence[Check]) -> None:
        self._path, self._machine, self._checks = path, machine, checks
        self._found: dict[str, tuple[Verdict, float]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    def add(self, check: Check, verdict: Verdict, seconds: float) -> None:
        self._found[check.name] = verdict, seconds
        self._write()

    def verdict(self, check: Check) -> Verdict:
        return self._found.get(check.name, (Skipped(NOT_REACHED), 0.0))[0]

    def numbers(self) -> dict[tuple[str, str], float]:
        """All that was found, by check and name."""
        return {
            (check, number.name): number.value
            for check, (verdict, _) in self._found.items()
            if isinstance(verdict, Ok | Missed)
            for number in verdict.numbers
        }

    def _write(self) -> None:
        rows = []
        for check in self._checks:
            verdict, seconds = self._found.get(check.name, (Skipped(NOT_REACHED), 0.0))
            row = {"check": check.name, "floor": check.floor, "seconds": round(seconds, 1)}
            rows.append(row | as_json(verdict))
        text = json.dumps({"machine": self._machine, "checks": rows}, indent=1, allow_nan=False)
        partial = self._path.with_name(f".{self._path.name}.partial")
        partial.write_text(text + "\n")
        partial.replace(self._path)


def run_all(
    checks: Sequence[Check],
    report: Report,
    start: Start,
    *,
    ends_at: float,
    lacks: Callable[[Check], str | None],
    say: Callable[[str], None],
) -> None:
    """Run the checks one after another until `ends_at` (of the monotonic clock), and say a row of
    the table for each. One that may need more than is left is skipped; so is one that the machine
    `lacks` something for. Raises Interrupted, once the report has that, too."""
    say("| check | verdict | found | compared with | s |")
    say("|---|---|---|---|---|")
    for check in checks:
        began = time.monotonic()
        verdict: Verdict = Failed(INTERRUPTED)
        try:
            if missing := lacks(check):
                verdict = Skipped(missing)
            elif check.seconds > ends_at - began:
                verdict = Skipped(NO_TIME)
            else:
                verdict = run_one(check.name, check.seconds, start)
        finally:
            seconds = time.monotonic() - began
            report.add(check, verdict, seconds)
            cells = (check.name, verdict.word, verdict.said, check.floor, f"{seconds:.0f}")
            say("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")


def summary(checks: Sequence[Check], report: Report) -> str:
    """One line: how many have which verdict.

    The words come in the order of `Verdict`, and those that no check has are left out."""
    words = [report.verdict(check).word for check in checks]
    kinds = (Ok, Missed, Skipped, Failed, TimedOut)
    return ", ".join(
        f"{words.count(kind.word)} {kind.word}" for kind in kinds if kind.word in words
    )


def good(checks: Sequence[Check], report: Report) -> bool:
    """True if nothing that was run went wrong."""
    return all(isinstance(report.verdict(check), Ok | Skipped) for check in checks)
