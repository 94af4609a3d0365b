"""Outgoing chunks of a server engine. Invariant: each request ends once, and no chunk of it follows
its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from asyncrl.engines.protocol import Chunk, Request
from asyncrl.engines.servers.server_routing import UNKNOWN, Records
from asyncrl.engines.servers.spans import TokenRun
from asyncrl.messages import Finish
from asyncrl.runtime.ipc.waits import Pulse

PIECE_BYTES, FRAME_BYTES = 1 << 20, 1 << 24
"""Bytes of routing that a chunk has, and about which a frame ends: the routing of a response comes
at its end, and many may end at a time."""


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
        """Chunks in the order in which they were added: all, as far as a frame takes their
        routing."""
        size = count = 0
        while count < len(self._ready) and size < FRAME_BYTES:
            routing = self._ready[count].routing
            size += 0 if routing is None else routing.nbytes
            count += 1
        chunks, self._ready = self._ready[:count], self._ready[count:]
        if self._ready:
            self._news.set()
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

    def route(self, request: Request, first: int, records: Records, version: int) -> None:
        """Add the records of tokens that were added: those from the new token `first` of the
        request on, in pieces; the empty chunk of one is under `version`."""
        rows = max(1, PIECE_BYTES // records.shape[1]) if records.size else 1
        for start in range(0, len(records), rows):
            piece = records[start : start + rows]
            if (piece != UNKNOWN).any():
                end = request.prefix_tokens + first + start + len(piece)
                self._route_to(request, end, piece, version)

    def _route_to(self, request: Request, end: int, records: Records, version: int) -> None:
        last = self._ready[-1] if self._ready else None
        if last is None or last.routing is not None or _place(last) != _place_of(request, end):
            last = _empty(request, version, end)
            self._ready.append(last)
        self._ready[-1] = msgspec.structs.replace(last, routing=records)
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
            empty = _empty(request, version, request.prefix_tokens + done)
            self._ready.append(msgspec.structs.replace(empty, finish=finish, why=why))
        self._news.set()


def _place(chunk: Chunk) -> tuple[int, int, int, str]:
    """The end of a chunk: its rollout, its attempt, the index after its tokens, its finish."""
    return chunk.rollout, chunk.attempt, chunk.start + len(chunk.ids), chunk.finish


def _place_of(request: Request, end: int) -> tuple[int, int, int, str]:
    """The end before index `end` of a chunk that does not finish its request."""
    return request.rollout, request.attempt, end, ""


def _empty(request: Request, version: int, start: int) -> Chunk:
    ids, behaviour = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return Chunk(request.rollout, request.attempt, version, start, ids, behaviour)
