"""counting.py: an engine whose token i of a response is i."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy as np
import trio

from asyncrl.config.engines import Capabilities
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Emit, Request
from asyncrl.engines.request_checks import refuse_misfit
from asyncrl.engines.spec import EngineContext, EngineKind


class CountingEngine(EngineKind):
    capabilities = Capabilities(keeps_versions=False)  # a load replaces the version before

    @classmethod
    @asynccontextmanager
    async def open(cls, context: EngineContext) -> AsyncIterator["CountingEngine"]:
        yield cls(EngineOptions.of(context.config), context.tokenizer.vocabulary)

    def __init__(self, options: EngineOptions, vocab_size: int) -> None:
        self._options, self._vocab_size = options, vocab_size
        self._version: int | None = None
        self._requests: dict[int, Request] = {}  # by rollout; the first `slots` are decoded
        self._done: dict[int, int] = {}  # tokens that left, by rollout
        self._ended: list[Chunk] = []
        self._news = trio.Event()

    @property
    def slots(self) -> int:
        return self._options.slots

    @property
    def version(self) -> int | None:
        return self._version

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            refuse_misfit(
                request, vocab_size=self._vocab_size, context_tokens=self._options.context_tokens
            )
        for request in requests:
            self._requests[request.rollout], self._done[request.rollout] = request, 0
        self._news.set()

    def interrupt(self, rollouts: Sequence[int]) -> None:
        for rollout in rollouts:
            if rollout in self._requests:
                self._ended.append(self._chunk(rollout, 0, "interrupted"))
        self._news.set()

    async def load(
        self, version: int, weights: Mapping[str, object] | None, *, pin: bool = False
    ) -> float:
        await trio.lowlevel.checkpoint()
        self._version = version  # a real engine takes `weights` here, between two decode steps
        self._news.set()
        return 0.0  # seconds that decoding stood still

    def unpin(self, version: int) -> None:
        pinned = [r.rollout for r in self._requests.values() if r.version == version]
        self.interrupt(pinned)

    async def run(self, emit: Emit) -> None:
        while True:
            self._news = trio.Event()
            chunks = self._advance()
            if chunks:
                await emit(chunks)
            else:
                await self._news.wait()

    def _advance(self) -> list[Chunk]:
        """Up to `chunk_tokens` tokens of each rollout that has a slot."""
        if self._version is not None:
            served = (None, self._version)
            gone = [r.rollout for r in self._requests.values() if r.version not in served]
            self.interrupt(gone)  # it holds one version, and theirs is another
            for rollout in list(self._requests)[: self.slots]:
                left = self._requests[rollout].max_new_tokens - self._done[rollout]
                count = min(left, self._options.chunk_tokens)
                finish = "length" if count == left else ""
                self._ended.append(self._chunk(rollout, count, finish))
        chunks, self._ended = self._ended, []
        return chunks

    def _chunk(self, rollout: int, count: int, finish: str) -> Chunk:
        request, done = self._requests[rollout], self._done[rollout]
        start = request.prefix_tokens + done  # the index in the response, prefix included
        ids = np.arange(start, start + count, dtype=np.int32) % self._vocab_size
        behaviour = np.zeros(count, np.float32)  # each token was certain: log 1
        self._done[rollout] = done + count
        if finish:
            del self._requests[rollout], self._done[rollout]
        version = request.version if request.version is not None else self._version or 0
        return Chunk(rollout, request.attempt, version, start, ids, behaviour, finish)
