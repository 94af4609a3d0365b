"""Workers that can be killed, from the side of the actor that has them.

Invariant: none of their processes outlives the block that opened them, nor does our end of a socket
to one.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import msgspec
import trio

from asyncrl.actors.worker_process import LENGTH, Bury, Start, frame
from asyncrl.runtime.ipc.waits import WaitExpired, Waits

START_S = 10.0
"""Seconds in which a worker must be forked."""
ENDING_S = 1.0
"""Seconds that workers get when their actor ends."""
NO_POOLS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables of a process that forks: libraries start no thread pools in it."""


class WorkersLost(RuntimeError):
    """Raised where the process that forks workers ended or hangs. The actor cannot continue. Its
    successor starts a new one."""


class ForkedWorker(NamedTuple):
    """A worker, and our end of its socket pair."""

    number: int
    stream: trio.SocketStream


class WorkerForks:
    """Starts and buries workers. It is made by `open_forks`; `called` is what they are, in the
    plural, for people."""

    def __init__(self, control: trio.SocketStream, waits: Waits, called: str) -> None:
        self._control, self._waits, self._called = control, waits, called
        self._using = trio.Lock()
        self._streams = set[trio.SocketStream]()  # to workers that were not closed

    async def open(self, opening: msgspec.Struct, *, deadline_s: float) -> bytes:
        """Send the first frame, and read the body of the one that answers it. Raises
        WorkersLost."""
        size = await self._exchange(opening, [], deadline_s=deadline_s)
        async with self._using:
            with self._answered(deadline_s):
                body = await exactly(self._control, size)
        if body is None:
            raise self._lost()
        return body

    async def start(
        self, beside: socket.socket | None = None, *, lasting: bool = False
    ) -> ForkedWorker:
        """Start a worker, which has its end of a socket pair, and `beside`. Raises WorkersLost."""
        ours, theirs = socket.socketpair()
        sockets = [theirs] if beside is None else [theirs, beside]
        # shielded: a worker whose number was not read would have no owner
        with theirs, trio.CancelScope(shield=True):
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            try:
                number = await self._exchange(Start(lasting), sockets, deadline_s=START_S)
            except BaseException:
                ours.close()
                raise
        self._streams.add(stream)
        return ForkedWorker(number, stream)

    async def bury(self, worker: ForkedWorker) -> None:
        """End a worker and all that it started. Raises WorkersLost."""
        await self.close(worker)
        await self.end(worker)

    async def close(self, worker: ForkedWorker) -> None:
        """Close the stream of a worker."""
        self._streams.discard(worker.stream)
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(worker.stream)

    async def close_all(self) -> None:
        """Close the streams of all workers."""
        while self._streams:
            await trio.aclose_forcefully(self._streams.pop())

    async def end(self, worker: ForkedWorker) -> None:
        """Have a worker ended, and all that it started; its stream stays open for its last words.
        Raises WorkersLost."""
        with trio.CancelScope(shield=True):  # a few bytes into a socket's buffer
            async with self._using:
                try:
                    await self._control.send_all(frame(Bury(worker.number)))
                except trio.BrokenResourceError as error:
                    raise self._lost() from error

    async def _exchange(
        self, message: msgspec.Struct, beside: list[socket.socket], *, deadline_s: float
    ) -> int:
        """Send a frame, with sockets beside it, and read the number that answers it. Raises
        WorkersLost."""
        text = frame(message)
        numbers = array("i", [sock.fileno() for sock in beside])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if beside else []
        async with self._using:
            with self._answered(deadline_s):
                sent = await self._control.socket.sendmsg([text], rights)
                await self._control.send_all(text[sent:])
                head = await exactly(self._control, LENGTH.size)
        if head is None:
            raise self._lost()
        number: int = LENGTH.unpack(head)[0]
        return number

    @contextmanager
    def _answered(self, deadline_s: float) -> Iterator[None]:
        try:
            with self._waits.on("fork", owner=self._called, deadline_s=deadline_s):
                yield
        except (OSError, trio.BrokenResourceError) as error:
            raise self._lost() from error
        except WaitExpired as error:
            raise WorkersLost(
                f"the process that starts {self._called} stands still: {error}"
            ) from error

    def _lost(self) -> WorkersLost:
        return WorkersLost(
            f"the process that starts {self._called} ended; its own error is in this actor's log, "
            "just above"
        )


@asynccontextmanager
async def open_forks(
    module: str,
    waits: Waits,
    called: str,
    environment: Mapping[str, str],
    ending_s: float = ENDING_S,
) -> AsyncIterator[WorkerForks]:
    """Start the nursery process `python -P -m module FD`. Its workers have `ending_s` seconds at
    the block's end."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = await _start(module, theirs.fileno(), {**environment, **NO_POOLS})
        control = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        forks = WorkerForks(control, waits, called)
        try:
            yield forks
        finally:
            with trio.CancelScope(shield=True):
                await forks.close_all()
                await trio.aclose_forcefully(control)  # it kills its workers, and ends
                with trio.move_on_after(ending_s):
                    await process.wait()
                process.kill()
                await process.wait()


async def _start(module: str, control: int, environment: Mapping[str, str]) -> trio.Process:
    return await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", module, str(control)],
        stdin=subprocess.DEVNULL,
        pass_fds=[control],
        env=environment,
    )


async def exactly(stream: trio.SocketStream, size: int) -> bytes | None:
    """So many bytes; None where the stream ends before."""
    parts = bytearray()
    while len(parts) < size:
        part = await stream.receive_some(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
