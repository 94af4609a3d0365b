"""Text for people, on a terminal, in a file or through a pipe. Invariant: the run goes on, even if
these fail.

A full disk, a pipe without a reader, and a terminal that is gone raise errors in the writer. From
the first such error on nothing more is written there, and the log says why.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import TextIO

logger = logging.getLogger(__name__)


class Output(io.TextIOBase):
    """A stream that accepts all text. It is quiet from the first error of `stream` on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self.quiet = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._terminal

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not self.quiet:
            try:
                self._stream.write(text)
            except OSError as error:
                self._fall_quiet(error)
        return len(text)

    def flush(self) -> None:
        if not self.quiet:
            try:
                self._stream.flush()
            except OSError as error:
                self._fall_quiet(error)

    def _fall_quiet(self, error: OSError) -> None:
        """Write nothing more, and drop what the stream has buffered, which the interpreter would
        try to write at its end."""
        self.quiet = True
        with contextlib.suppress(OSError):  # a stream in memory has no descriptor
            descriptor = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
        logger.warning("nothing more is shown: %s", error.strerror or error)


@contextlib.contextmanager
def outlived() -> Iterator[None]:
    """Let the block go on if the reader of its stdout leaves, or its disk is full. A stream that
    was closed before the start takes all text, and shows none."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        stdout, stderr = sys.stdout or nowhere, sys.stderr or nowhere
        if isinstance(stdout, io.TextIOWrapper):
            stdout.reconfigure(errors="replace")  # a terminal without `≤` shows `?`
        output = Output(stdout)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(stderr):
            try:
                yield
            finally:
                output.flush()


def complain(sentence: str) -> None:
    """Print on stderr what went wrong, if that is possible."""
    stderr = Output(sys.stderr)
    stderr.write(f"asyncrl: {sentence}\n")
    stderr.flush()
