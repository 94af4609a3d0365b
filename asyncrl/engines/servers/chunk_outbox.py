"""Outgoing chunks of a server engine. Invariant: each request ends once, and no chunk of it follows
its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from asyncrl.engines.protocol import Chunk, Request
from asyncrl.engines.servers.spans import TokenRun
from asyncrl.messages import Finish
from asyncrl.runtime.ipc.waits import Pulse


class ChunkOutbox:
    """Collects chunks until they are taken, for one task that waits."""

    def __init__(self) -> None:
        self._ready: list[Chunk] = []
        self._news = Pulse()

    def __len__(self) -> int:
        return len(self._ready)

    async def wait(self) -> None:
        """Return when something was added, or `wake` was called, since the last wait."""
        await self._news.wait()

    def wake(self) -> None:
        """Wake the task, because other chunks may be sent now."""
        self._news.set()

    def take(self) -> list[Chunk]:
        """All chunks, in the order in which they were added."""
        chunks, self._ready = self._ready, []
        return chunks

    def add(self, request: Request, first: int, runs: Sequence[TokenRun]) -> None:
        """Add tokens of a stream that began at the new token `first` of the request."""
        for run in runs:
            start = request.prefix_tokens + first + run.start
            self._ready.append(
                Chunk(request.rollout, request.attempt, run.version, start, run.ids, run.behaviour)
            )
        if runs:
            self._news.set()

    def end(self, request: Request, done: int, finish: Finish, version: int, why: str = "") -> None:
        """Add the end after `done` new tokens, and the reason `why` of one that was not asked for:
        in one chunk with the last of them if they are unsent, else in an empty one under
        `version`."""
        last = self._ready[-1] if self._ready else None
        if last is not None and (last.rollout, last.attempt, last.finish) == (
            request.rollout,
            request.attempt,
            "",
        ):
            self._ready[-1] = msgspec.structs.replace(last, finish=finish, why=why)
        else:
            self._ready.append(
                Chunk(
                    request.rollout,
                    request.attempt,
                    version,
                    request.prefix_tokens + done,
                    np.zeros(0, np.int32),
                    np.zeros(0, np.float32),
                    finish,
                    why,
                )
            )
        self._news.set()
