"""Runs a program, and waits for it. Invariant: when `run` returns or raises, nothing that the
program started in its sandbox lives, and no more of its output was kept than it may have.

It blocks. Code of trio and asyncio calls it in a thread (`under_trio.py`), and must: the kernel
ends a sandbox when the *thread* that started it ends, and a library's thread may end before the
program.
"""

from __future__ import annotations

import os
import select
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Protocol

from asyncrl.sandbox.programs.program import Program, ProgramError, Ran

END_S = 30.0
"""Seconds that a killed program may take to be gone."""
_PIECE = 2**16


class Started(Protocol):
    """A program that was started. `process` is a child of this one, with pipes to the program."""

    @property
    def process(self) -> subprocess.Popen[bytes]: ...

    def kill(self) -> None:
        """Kill the program and all that it started, also if parts of it have ended. `process`,
        which was not reaped yet, ends by it."""
        ...

    def refusal(self, stderr: bytes) -> str:
        """The reason for which the program never began, asked once `process` has ended; "" if it
        did begin. `stderr` is its standard error."""
        ...


class Sandbox(Protocol):
    """A kind of sandbox, in which programs are run."""

    def missing(self) -> str:
        """Try one, and return a sentence that says why this machine has none; "" if it has."""
        ...

    def start(self, program: Program) -> AbstractContextManager[Started]:
        """Start a program. It must be ended in the block, after which all that was made for it is
        gone. Raises ProgramError."""
        ...


class Stop:
    """A signal that ends a program which runs in another thread. `with` closes it."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0)

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def set(self) -> None:
        """Send the signal. The program is killed, and `run` returns soon."""
        os.eventfd_write(self._descriptor, 1)


def run(program: Program, sandbox: Sandbox, stop: Stop | None = None) -> Ran:
    """Run a program to its end, its deadline, its bound of output, or to `stop`. Raises
    ProgramError."""
    if wrong := elsewhere():
        raise ProgramError(wrong)
    began = time.monotonic()
    with sandbox.start(program) as started, end_of(started.process.pid) as ended:
        streams = _Streams(started.process, program)
        try:
            timed_out = streams.until(ended, began + program.seconds, stop)
        finally:
            _end(started, ended)
        reason = started.refusal(bytes(streams.stderr))
        if reason and not streams.stopped:  # also at its deadline: then the machine was slow
            raise ProgramError(reason)
        code = started.process.returncode
        return Ran(
            stdout=bytes(streams.stdout),
            stderr=bytes(streams.stderr),
            code=code if code >= 0 else 128 - code,
            timed_out=timed_out,
            truncated=streams.truncated,
            seconds=time.monotonic() - began,
        )


def elsewhere() -> str:
    """The reason for which this machine runs no programs; "" if it does."""
    return "" if sys.platform == "linux" else "programs are run on Linux alone"


class _Streams:
    """Input and output of a program: the output is read while the input is written."""

    def __init__(self, process: subprocess.Popen[bytes], program: Program) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._stdin: IO[bytes] = process.stdin
        self._left = memoryview(program.stdin)
        self._most = program.output_bytes
        self.stdout, self.stderr = bytearray(), bytearray()
        self._into = {process.stdout: self.stdout, process.stderr: self.stderr}
        self.truncated = self.stopped = False

    def until(self, ended: int, deadline: float, stop: Stop | None) -> bool:
        """Write and read until it `ended`, or must be ended. Returns True at the deadline."""
        with selectors.DefaultSelector() as waiting:
            for stream in (self._stdin, *self._into):
                os.set_blocking(stream.fileno(), False)
            for stream in self._into:
                waiting.register(stream, selectors.EVENT_READ)
            waiting.register(ended, selectors.EVENT_READ)
            waiting.register(self._stdin, selectors.EVENT_WRITE)
            if stop is not None:
                waiting.register(stop, selectors.EVENT_READ)
            while not self.truncated:
                ready = waiting.select(max(0.0, deadline - time.monotonic()))
                there = {key.fileobj for key, _ in ready}
                if stop is not None and stop in there:
                    self.stopped = True
                    return False
                if ended in there:
                    for stream in self._into:
                        while self._read(stream):
                            pass
                    return False
                if time.monotonic() >= deadline:
                    return True
                if self._stdin in there and self._write():
                    waiting.unregister(self._stdin)
                    self._stdin.close()
                for stream in self._into:
                    if stream in there and self._read(stream) is None:
                        waiting.unregister(stream)
            return False

    def _write(self) -> bool:
        """Write a piece of the input; True if that was all, or the program reads no more."""
        try:
            if self._left:
                self._left = self._left[os.write(self._stdin.fileno(), self._left[:_PIECE]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True
        return not self._left

    def _read(self, stream: IO[bytes]) -> int | None:
        """Read a piece, and return its size: 0 if there is none now, and if the bound is reached;
        None at the end."""
        output = self._into[stream]
        try:
            piece = os.read(stream.fileno(), min(_PIECE, self._most + 1 - len(output)))
        except BlockingIOError:
            return 0
        output += piece
        if len(output) > self._most:
            del output[self._most :]
            self.truncated = True
            return 0
        return len(piece) or None


def _end(started: Started, ended: int) -> None:
    """End a program, and reap it. Raises ProgramError if it does not end."""
    process = started.process
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    started.kill()  # also if it has ended: what it started may live
    if not readable(ended, END_S):
        raise ProgramError(f"a program was killed, and is there still after {END_S:g} s")
    process.wait()


@contextmanager
def end_of(pid: int) -> Iterator[int]:
    """A descriptor that can be read once a process, not yet reaped, has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def readable(descriptor: int, seconds: float) -> bool:
    """Wait at most this long until there is something to read, or the end."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))
