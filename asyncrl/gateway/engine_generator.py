"""A `Generator` in front of any `Engine`. Invariant: the gateway's requests have numbers of their
own, above all that a coordinator gives.

So one engine may serve a run's leases and agents at a time: whoever has its chunks gives them to
`take`, and keeps what comes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import trio

from asyncrl.engines.protocol import Chunk, Engine, Request
from asyncrl.gateway.generator import GeneratedPiece, Generation

FIRST = 1 << 62
"""The first of all numbers that a gateway gives a request, as its rollout and as its key of
draws."""
_PLACES, _LIVES, _CALLS = 1 << 18, 1 << 12, 1 << 32


def first_number(place: int, life: int) -> int:
    """The first number of one gateway of a run: that at `place` (of 2¹⁸), in the `life`-th
    time that it is open (of 2¹², then as the first). No two gateways have a number, and so a draw,
    in common before either has had 2³² calls."""
    return FIRST + ((place % _PLACES) * _LIVES + life % _LIVES) * _CALLS


class _Answer:
    """The pieces of one request as they come. Their number is bounded by its tokens."""

    def __init__(self, engine: Engine, rollout: int) -> None:
        self._engine, self._rollout = engine, rollout
        self._send, self._receive = trio.open_memory_channel[GeneratedPiece](math.inf)
        self.ended = False

    def __aiter__(self) -> _Answer:
        return self

    async def __anext__(self) -> GeneratedPiece:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def interrupt(self, needed: int) -> None:
        self.abandon()

    def abandon(self) -> None:
        if not self.ended:
            self._engine.interrupt([self._rollout])

    def put(self, chunk: Chunk) -> None:
        if len(chunk.ids) != len(chunk.behaviour):
            raise ValueError(
                f"the engine gave {len(chunk.ids)} ids and {len(chunk.behaviour)} "
                "log-probabilities; they must be parallel"
            )
        self._send.send_nowait(
            GeneratedPiece(chunk.ids, chunk.behaviour, chunk.version, chunk.finish)
        )
        if chunk.finish:
            self.ended = True
            self._send.close()


class EngineGenerator:
    """A `Generator` (see `generator`) over `engine`. Each request has a number of its own, from
    `first` on, and it is its key: no two draw alike."""

    def __init__(self, engine: Engine, first: int = FIRST) -> None:
        self._engine = engine
        self._next = first
        self._answers: dict[int, _Answer] = {}

    @property
    def ready(self) -> bool:
        return self._engine.version is not None

    @contextmanager
    def generate(
        self,
        session: str,
        ids: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float,
        stops: Sequence[str],
    ) -> Iterator[Generation]:
        rollout, self._next = self._next, self._next + 1
        request = Request(
            rollout=rollout,
            attempt=1,
            key=rollout,
            ids=np.array(ids, np.int32),
            prefix_tokens=0,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
        )
        self._engine.submit([request])
        answer = self._answers[rollout] = _Answer(self._engine, rollout)
        try:
            yield answer
        finally:
            answer.abandon()
            del self._answers[rollout]

    def take(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Give each of the gateway's chunks to the call that waits for it; returns the others."""
        for chunk in chunks:
            if (answer := self._answers.get(chunk.rollout)) is not None:
                answer.put(chunk)
        return [chunk for chunk in chunks if chunk.rollout < FIRST]

    async def run(self) -> None:
        """Drive an engine that serves nobody else, until cancelled."""

        async def emit(chunks: Sequence[Chunk]) -> None:
            if others := self.take(chunks):
                raise ValueError(
                    f"the engine sampled for rollout {others[0].rollout}, which the gateway did "
                    "not ask for"
                )
            await trio.lowlevel.checkpoint()

        await self._engine.run(emit)
