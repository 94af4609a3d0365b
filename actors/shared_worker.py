"""A worker that has many answers at a time, because their verifiers wait for something outside.

Invariant: each answer has its own verdict of the worker, or None. A worker that dies, hangs or says
something else gives None to all that it has, and the next answer starts another.
"""

from __future__ import annotations

from itertools import count

import msgspec
import trio

from asyncrl.actors.verifier_process import TimedVerdict, VerifyRequest
from asyncrl.actors.worker_forks import ForkedWorker, WorkerForks
from asyncrl.actors.worker_process import decode, frame, taken
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.tasks.later import Loop

GRACE_S = 2.0
"""Seconds behind a verifier's deadline in which the worker says so itself; else it hangs."""
MOST_BYTES = 2**16
"""Bytes of a verdict, at most."""


class _Waiting:
    """An answer that is with the worker."""

    def __init__(self) -> None:
        self.verdict: TimedVerdict | None = None
        self.woken = trio.Event()


class _Worker:
    """A living worker, and the answers that it has. One of those who wait reads for all of them:
    so no task is needed beside them."""

    def __init__(self, worker: ForkedWorker) -> None:
        self.forked = worker
        self.sending = trio.Lock()
        self.reader: _Waiting | None = None
        self.waiting: dict[int, _Waiting] = {}
        self.came = bytearray()
        self.dead = self.buried = False

    async def verdict(self, number: int, mine: _Waiting) -> TimedVerdict | None:
        """Wait for the verdict on an answer; None where the worker is dead."""
        try:
            while mine.verdict is None and not self.dead:
                if self.reader is None:
                    self.reader = mine
                    try:
                        await self._read()
                    finally:
                        self.reader = None
                else:
                    mine.woken = trio.Event()
                    await mine.woken.wait()
            return mine.verdict
        finally:
            self.waiting.pop(number, None)
            if self.reader is None:
                for other in self.waiting.values():
                    other.woken.set()  # one of them reads on
                    break

    async def _read(self) -> None:
        """Read what comes next, and give it to those whose it is."""
        try:
            part = await self.forked.stream.receive_some(2**16)
            if not part:
                raise ValueError("the worker ended")
            self.came += part
            while (body := taken(self.came, MOST_BYTES)) is not None:
                verdict = decode(body, TimedVerdict)
                other = self.waiting.get(verdict.number)
                if other is not None:
                    other.verdict = verdict
                    other.woken.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError, ValueError):
            self.die()

    def die(self) -> None:
        """All that wait for it learn that it is dead."""
        self.dead = True
        for other in self.waiting.values():
            other.woken.set()


class SharedWorker:
    """The worker of answers whose verifiers run under one `loop`. It is started for the first of
    them, and again for the next one after it died."""

    def __init__(self, forks: WorkerForks, waits: Waits, loop: Loop, deadline_s: float) -> None:
        self._forks, self._waits, self._loop = forks, waits, loop
        self._deadline_s = deadline_s
        self._worker: _Worker | None = None
        self._starting = trio.Lock()
        self._numbers = count(1)

    async def judge(self, answer: VerifyRequest) -> TimedVerdict | None:
        """The verdict on an answer; None if its worker died, or hangs. Raises WorkersLost."""
        async with self._starting:
            if self._worker is None or self._worker.dead:
                self._worker = _Worker(await self._forks.start(lasting=True))
            worker = self._worker
        number, mine = next(self._numbers), _Waiting()
        worker.waiting[number] = mine
        request, sent = msgspec.structs.replace(answer, number=number, loop=self._loop), False
        try:
            with self._waits.on(
                "verdict",
                owner=f"{answer.split} prompt {answer.prompt_index}",
                deadline_s=self._deadline_s + GRACE_S,
            ):
                async with worker.sending:
                    await worker.forked.stream.send_all(frame(request))
                sent = True
                return await worker.verdict(number, mine)
        except (WaitExpired, trio.BrokenResourceError, trio.ClosedResourceError):
            worker.die()
            return None
        except trio.Cancelled:
            if not sent:  # a frame may have been cut
                worker.die()
            raise
        finally:
            worker.waiting.pop(number, None)
            if worker.dead and not worker.buried:
                worker.buried = True
                await self._forks.bury(worker.forked)
