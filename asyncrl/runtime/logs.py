"""The log of one actor: the messages of its process, tracebacks included, in
`<run>/logs/<role>-<index>.log`, one line a record.

The launcher redirects the process's stderr to the same file, so what Python or a library prints as
it dies is there too.
"""

from __future__ import annotations

import io
import logging
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from asyncrl.config.schema.run_section import SinkName
from asyncrl.escape import escaped_lines
from asyncrl.files import open_growing
from asyncrl.messages import Role

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s {actor} %(name)s: %(message)s"
LINE = 20_000
"""Characters of a line, at most."""

SELDOM_S = 60.0
"""Seconds between two lines of a kind that strangers cause."""
SELDOM_KINDS = 64
"""Kinds that are told apart, at most; the rest is one."""
LogOwner = Role | SinkName | Literal["page", "ray"]
"""The process whose log it is."""
FOLDER = "logs"
"""The folder of logs in a run's directory."""


def path(run: Path, role: LogOwner, index: int) -> Path:
    """The path of an actor's log. All starts of an actor append to the same file."""
    return run / FOLDER / f"{role}-{index}.log"


def start(run: Path, role: LogOwner, index: int, level: str) -> Path:
    """Send this process's logging, warnings and uncaught exceptions to its log. `level` is
    `run.log`. Returns the log's path."""
    handler = _handler(run, role, index)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    return path(run, role, index)


@contextmanager
def kept(run: Path, role: Role, index: int) -> Iterator[None]:
    """Send what is logged inside the block to this log, too. A process that talks to people keeps
    its own way to report what ends it."""
    handler = _handler(run, role, index)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def _handler(run: Path, role: LogOwner, index: int) -> logging.Handler:
    target = path(run, role, index)
    target.parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(target)
    handler.setFormatter(
        _Format(FORMAT.format(actor=f"{role}-{index}"), datefmt="%Y-%m-%dT%H:%M:%S")
    )
    return handler


class Seldom:
    """Decides about lines of a log that strangers cause: of each kind the first is written, and
    then one every `SELDOM_S` seconds, which says how many it stands for. So no stranger fills the
    disk.

    >>> at = iter([0.0, 1.0, 2.0, 100.0])
    >>> seldom = Seldom(now=lambda: next(at))
    >>> [seldom.due("refused") for _ in range(4)]
    ['', None, None, ' (3 since the last line of this kind)']
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last: dict[str, float] = {}
        self._count = Counter[str]()

    def due(self, kind: str) -> str | None:
        """The end of a line of this kind; None if it is not written."""
        if kind not in self._last and len(self._last) >= SELDOM_KINDS:
            kind = "other"
        now = self._now()
        self._count[kind] += 1
        if now - self._last.get(kind, -math.inf) < SELDOM_S:
            return None
        count, self._last[kind] = self._count.pop(kind), now
        return "" if count == 1 else f" ({count:,} since the last line of this kind)"


class _LogFile(logging.FileHandler):
    """A log, which is no link. A disk without room for it is no fault of who writes to it: what
    does not fit is lost, and nothing is printed in its place."""

    def _open(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(open_growing(Path(self.baseFilename)), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class _Format(logging.Formatter):
    """Records whose text cannot pass for another record, nor do anything to the terminal that
    shows it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escaped_lines(record.message, LINE).replace("\n", "\n    ")
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return escaped_lines(super().formatException(ei), LINE)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("asyncrl").critical(
        "ended by an uncaught exception", exc_info=(kind, error, trace)
    )


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _uncaught(args.exc_type, args.exc_value, args.exc_traceback)
