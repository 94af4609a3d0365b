"""The slots of a lane, and the request in each. Invariant: `history[s, : positions[s] + 1]` are the
known ids of slot s, of which those before `sent[s]` have left in chunks; nothing here depends on
which slot a request got.

Arrays, one row a slot, so that a decode step costs a few array operations and no loop over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.draws import stream, uniforms
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.ipc.messages import Finish


class Slots:
    """The state of `count` slots of `context_tokens` each. Positions count from the prompt's first
    token."""

    def __init__(
        self, count: int, context_tokens: int, *, stops: NDArray[np.bool_], run_seed: int
    ) -> None:
        self._stops, self._run_seed = stops, run_seed
        self.requests: list[Request | None] = [None] * count
        self.live = np.zeros(count, np.bool_)
        self.history = np.zeros((count, context_tokens), np.int32)
        self.behaviour = np.zeros((count, context_tokens), np.float32)
        self.last = np.zeros(count, np.int64)
        self.positions = np.zeros(count, np.int64)
        self.temperature = np.ones(count, np.float32)
        self._prompt = np.zeros(count, np.int64)
        self._last_place = np.zeros(count, np.int64)
        self._sent = np.zeros(count, np.int64)
        self._stream = np.zeros(count, np.uint64)
        self._flat_history, self._flat_behaviour = (
            self.history.reshape(-1),
            self.behaviour.reshape(-1),
        )
        self._rows_start = np.arange(count) * context_tokens

    @property
    def occupied(self) -> int:
        return int(np.count_nonzero(self.live))

    def place(self, requests: Sequence[Request]) -> list[int]:
        """Put requests into free slots, the lowest first; there must be enough. Returns their
        slots, in the same order."""
        chosen = [int(s) for s in np.flatnonzero(~self.live)[: len(requests)]]
        for slot, request in zip(chosen, requests, strict=True):
            known = len(request.ids)
            self.requests[slot] = request
            self.live[slot] = True
            self.history[slot, :known] = request.ids
            self.last[slot], self.positions[slot] = request.ids[-1], known - 1
            self.temperature[slot] = request.temperature
            self._prompt[slot], self._sent[slot] = known - request.prefix_tokens, known
            self._last_place[slot] = known + request.max_new_tokens - 1
            self._stream[slot] = stream(self._run_seed, request.key)
        return chosen

    def draws(self, rows: int) -> NDArray[np.float64]:
        """The uniforms of the next token of the first `rows` slots."""
        return uniforms(self._stream[:rows], self.positions[:rows] + 1 - self._prompt[:rows])

    def extend(self, tokens: NDArray[np.int64], behaviour: NDArray[np.float32]) -> list[int]:
        """Add one token to each live one of the first `len(tokens)` slots. Returns the slots that
        ended by it."""
        rows = len(tokens)
        live, positions = self.live[:rows], self.positions[:rows]
        positions += live
        self.last[:rows] = tokens
        places = self._rows_start[:rows] + positions
        self._flat_history[places] = tokens
        self._flat_behaviour[places] = behaviour
        ended = self._stops[tokens]
        ended |= positions >= self._last_place[:rows]
        ended &= live
        slots: list[int] = np.flatnonzero(ended).tolist()
        return slots

    def unsent(self) -> list[int]:
        """Live slots with tokens that have not left."""
        return [int(s) for s in np.flatnonzero(self.live & (self.positions + 1 > self._sent))]

    def take(self, slot: int, version: int, finish: Finish = "") -> Chunk:
        """The tokens of a slot that have not left; with `finish`, the slot is free afterwards."""
        request = self.requests[slot]
        assert request is not None
        start, end = int(self._sent[slot]), int(self.positions[slot]) + 1
        self._sent[slot] = end
        ids, behaviour = (
            self.history[slot, start:end].copy(),
            self.behaviour[slot, start:end].copy(),
        )
        first = start - int(self._prompt[slot])
        if finish:
            self.requests[slot], self.live[slot] = None, False
            self.positions[slot] = 0
        return Chunk(request.rollout, request.attempt, version, first, ids, behaviour, finish)

    def ending(self, slot: int) -> Finish:
        """The reason for which a slot that `extend` named has ended."""
        return "stop" if self._stops[self.last[slot]] else "length"

    def compact(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Move live slots into the lowest places. Returns (to, from) of the moves, which the cache
        has to follow."""
        rows = self.occupied
        to = np.flatnonzero(~self.live[:rows])
        origin = np.flatnonzero(self.live[rows:]) + rows
        for array in (
            self.live, self.history, self.behaviour, self.last, self.positions, self.temperature,
            self._prompt, self._last_place, self._sent, self._stream,
        ):  # fmt: skip
            array[to] = array[origin]
        self.live[origin] = False
        self.positions[origin] = 0
        for a, b in zip(to, origin, strict=True):
            self.requests[a], self.requests[b] = self.requests[b], None
        return to, origin
