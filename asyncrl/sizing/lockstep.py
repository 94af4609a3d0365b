"""An engine whose slots decode in step, as a batch does on an accelerator. Invariant: each decode
step gives every busy slot one token, and its duration depends on the number of busy slots.

The next event is found without scanning the slots, so thousands of slots cost as much as their
chunks. All tokens are alike, and the engine serves the newest version alone.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import trio

from asyncrl.engines.protocol import Chunk, Emit, Idle, Request
from asyncrl.engines.request_checks import refuse_misfit
from asyncrl.messages import Finish
from asyncrl.sizing.cluster_models import EngineModel

if TYPE_CHECKING:
    import torch

_ROUNDING = 1e-6
"""Share of a decode step by which sums of seconds may miss it."""


class _LockstepSlot(msgspec.Struct):
    """A request, decoded from decode step `began` on until `ends`; `emitted` is the step up to
    which its tokens were streamed, `room` the tokens of cache that are kept for it."""

    request: Request
    began: int
    ends: int
    emitted: int
    room: int = 0


class LockstepEngine:
    """An `Engine` (see `protocol`): a response has `length(key)` tokens, and a decode step with `n
    >= 1` busy slots takes `model.decode_s(n)` seconds. Before a request begins, all slots pause
    while its context is read. It begins when a slot is free and, with `model.kv_tokens`, its final
    number of tokens fits beside those of the others; one that never fits begins alone. A new
    version stops all slots for `swap_s` seconds, and, if it must `recompute` caches, while they are
    read again. `pause` stops them, too.

    It streams every `chunk_tokens` decode steps, and at every finish, swap and interruption; with
    `beat_s`, what is complete is streamed at the next multiple of these seconds, so that engines
    stream together. `idle` counts waits named `weights` and `requests`.
    """

    def __init__(
        self,
        length: Callable[[int], int],
        model: EngineModel,
        *,
        slots: int,
        context_tokens: int,
        chunk_tokens: int,
        vocab_size: int,
        idle: Idle,
        swap_s: float = 0.0,
        recompute: bool = False,
        beat_s: float = 0.0,
    ) -> None:
        self._beat_s = beat_s
        self._length, self._decode_s, self._slots = length, cache(model.decode_s), slots
        self._prefill_token_s, self._kv_tokens = model.prefill_token_s, model.kv_tokens
        self._swap_s, self._recompute = swap_s, recompute
        self._context_tokens, self._chunk_tokens, self._vocab_size, self._idle = (
            context_tokens,
            chunk_tokens,
            vocab_size,
            idle,
        )
        self._version: int | None = None
        self._waiting: deque[Request] = deque()
        self._decoding: dict[int, _LockstepSlot] = {}  # in the order in which they began
        self._begun = 0
        self._ends: list[
            tuple[int, int]
        ] = []  # a heap of (decode step, slot), with interrupted ones
        self._steps = 0  # decode steps done
        self._kept = 0  # tokens of cache that are kept for the slots that decode
        self.busy_s = 0.0
        """Sum over slots of the seconds in which each decoded."""
        self.decoding_s = 0.0
        """Seconds in which any slot decoded."""
        self._paused_until = 0.0
        self._since = 0.0  # the end of the last decode step, or of a pause after it
        self._ready: list[Chunk] = []
        self._news = trio.Event()
        self._ids = np.ones(context_tokens, np.int32)
        self._behaviour = np.full(context_tokens, -1.0, np.float32)

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def version(self) -> int | None:
        return self._version

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            refuse_misfit(request, vocab_size=self._vocab_size, context_tokens=self._context_tokens)
            assert request.version is None, "only the newest version is here"
        self._catch_up()  # so that a new request begins now
        self._waiting.extend(requests)
        self._news.set()

    def interrupt(self, rollouts: Sequence[int]) -> None:
        self._catch_up()
        chosen = set(rollouts)
        for number in [
            number for number, slot in self._decoding.items() if slot.request.rollout in chosen
        ]:
            self._ready.append(self._chunk(self._freed(number), "interrupted"))
        for request in [request for request in self._waiting if request.rollout in chosen]:
            self._waiting.remove(request)
            self._ready.append(self._chunk(_LockstepSlot(request, 0, 0, 0), "interrupted"))
        self._news.set()

    async def load(
        self, version: int, weights: Mapping[str, torch.Tensor] | None, *, pin: bool = False
    ) -> float:
        await trio.lowlevel.checkpoint()
        self._catch_up()
        self._flush()
        self._version = version
        if self._decoding:
            self._since += self._swap_s + self._recomputed_s()
        self._news.set()
        return self._swap_s

    def pause(self, seconds: float) -> None:
        """Decode nothing for `seconds` from now on; work that has begun ends that much later."""
        self._catch_up()
        self._paused_until = trio.current_time() + seconds
        if self._decoding:
            self._since += seconds
        self._news.set()

    def unpin(self, version: int) -> None:
        """Do nothing: the newest version is the only one."""

    async def run(self, emit: Emit) -> None:
        while True:
            self._catch_up()
            self._news = trio.Event()
            if not self._ready:
                await self._wait()
                self._catch_up()
            chunks, self._ready = self._ready, []
            if chunks:
                await emit(chunks)

    # ---------------------------------------------------------------------------------------- time

    def _catch_up(self) -> None:
        """Do the decode steps that have ended by now, and fill each slot as soon as it is free."""
        now = trio.current_time()
        if not self._decoding:
            self._since = max(now, self._paused_until)
        while self._refill():
            pace, due = self._decode_s(len(self._decoding)), self._due() - self._steps
            steps = min(due, max(0, math.floor((now - self._since) / pace + _ROUNDING)))
            self._steps += steps
            self._since += steps * pace
            self.busy_s += steps * pace * len(self._decoding)
            self.decoding_s += steps * pace
            if steps < due:
                return
            self._collect()

    def _due(self) -> int:
        """The decode step after which a chunk is complete."""
        while self._ends[0][1] not in self._decoding:
            heapq.heappop(self._ends)
        return min(self._ends[0][0], (self._steps // self._chunk_tokens + 1) * self._chunk_tokens)

    async def _wait(self) -> None:
        if self._decoding:
            pace = self._decode_s(len(self._decoding))
            due_at = self._since + (self._due() - self._steps) * pace
            if self._beat_s:
                due_at = self._beat_s * math.ceil(due_at / self._beat_s - _ROUNDING)
            with trio.move_on_at(due_at):
                await self._news.wait()
        else:
            with self._idle("weights" if self._version is None else "requests"):
                await self._news.wait()

    # --------------------------------------------------------------------------------------- slots

    def _refill(self) -> bool:
        """Give free slots to waiting requests. Returns True if any slot is busy then."""
        while self._version is not None and self._waiting and len(self._decoding) < self._slots:
            request = self._waiting[0]
            left = min(
                request.max_new_tokens, max(1, self._length(request.key) - request.prefix_tokens)
            )
            room = len(request.ids) + left
            if self._kv_tokens and self._decoding and self._kept + room > self._kv_tokens:
                break
            self._waiting.popleft()
            self._since += self._prefill_token_s * len(request.ids)
            self._kept += room
            self._decoding[self._begun] = _LockstepSlot(
                request, self._steps, self._steps + left, self._steps, room
            )
            heapq.heappush(self._ends, (self._steps + left, self._begun))
            self._begun += 1
        return bool(self._decoding)

    def _collect(self) -> None:
        """Make the last chunk of each response that has ended, and every other complete chunk."""
        while self._ends and self._ends[0][0] <= self._steps:
            _, number = heapq.heappop(self._ends)
            if number in self._decoding:
                slot = self._freed(number)
                short = (
                    self._length(slot.request.key)
                    > slot.request.prefix_tokens + slot.request.max_new_tokens
                )
                self._ready.append(self._chunk(slot, "length" if short else "stop"))
        if self._steps % self._chunk_tokens == 0:
            self._flush()

    def _freed(self, number: int) -> _LockstepSlot:
        """Free the slot of a request that decodes no longer, and return it."""
        slot = self._decoding.pop(number)
        self._kept -= slot.room
        return slot

    def _recomputed_s(self) -> float:
        """Seconds in which the caches of all decoding slots are read again."""
        if not self._recompute:
            return 0.0
        held = (
            len(slot.request.ids) + self._steps - slot.began for slot in self._decoding.values()
        )
        return self._prefill_token_s * sum(held)

    def _flush(self) -> None:
        self._ready += [
            self._chunk(slot, "") for slot in self._decoding.values() if slot.emitted < self._steps
        ]

    def _chunk(self, slot: _LockstepSlot, finish: Finish) -> Chunk:
        """The tokens that a slot has decoded and not streamed."""
        request, count = slot.request, min(self._steps, slot.ends) - slot.emitted
        start = request.prefix_tokens + slot.emitted - slot.began
        slot.emitted += count
        ids, behaviour = self._ids[:count], self._behaviour[:count]
        return Chunk(
            request.rollout, request.attempt, self._version or 0, start, ids, behaviour, finish
        )
