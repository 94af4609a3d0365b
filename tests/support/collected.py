"""Chunks that an engine emitted, for tests to wait on and look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from asyncrl.engines.protocol import Chunk


class Collected:
    """Frames as they were emitted; `emit` is what an engine's `run` takes."""

    def __init__(self) -> None:
        self.frames: list[list[Chunk]] = []
        self._more = trio.Event()

    async def emit(self, chunks: Sequence[Chunk]) -> None:
        assert chunks
        self.frames.append(list(chunks))
        self._more.set()
        self._more = trio.Event()

    def chunks(self, rollout: int | None = None) -> list[Chunk]:
        return [
            chunk for frame in self.frames for chunk in frame if rollout in (None, chunk.rollout)
        ]

    def finishes(self) -> dict[int, str]:
        ended = [chunk for chunk in self.chunks() if chunk.finish]
        assert len({chunk.rollout for chunk in ended}) == len(ended)
        return {chunk.rollout: chunk.finish for chunk in ended}

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            await self._more.wait()

    async def ended(self, *rollouts: int) -> None:
        await self.until(lambda: set(rollouts) <= set(self.finishes()))
