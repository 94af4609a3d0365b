"""The slots of a lane, and the request in each. Invariant: `history[s, : positions[s] + 1]` are the
known ids of slot s, of which those before `sent[s]` were sent in chunks; nothing here depends on
which slot a request got.

A slot whose request has ended is idle: it keeps that request's positions until another request
takes it. The next request whose ids start with all that a slot holds takes that slot. Others take
empty slots first, then those idle for longest. A slot that is not live points to the position after
its contents, since a decode step writes there.

Arrays, one row a slot, so that a decode step costs a few array operations and no loop over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.draws import stream, uniforms
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.messages import Finish


class Slots:
    """The state of `count` slots of `context_tokens` each, with records of `routing` bytes a token.
    Positions count from the prompt's first token."""

    def __init__(
        self,
        count: int,
        context_tokens: int,
        *,
        stops: NDArray[np.bool_],
        run_seed: int,
        routing: int = 0,
    ) -> None:
        self._stops, self._run_seed = stops, run_seed
        self.requests: list[Request | None] = [None] * count
        self.live = np.zeros(count, np.bool_)
        self.history = np.zeros((count, context_tokens), np.int32)
        self.behaviour = np.zeros((count, context_tokens), np.float32)
        self.routing = np.zeros((count, context_tokens, routing), np.uint8)
        self.last = np.zeros(count, np.int64)
        self.positions = np.zeros(count, np.int64)
        self.offsets = np.zeros(count, np.int64)
        self.temperature = np.ones(count, np.float32)
        self._own = np.zeros(count, np.bool_)  # its contents were computed by the current weights
        self._ended = np.zeros(count, np.int64)  # idle: the count of endings at its own; else 0
        self._endings = 0
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

    def place(self, requests: Sequence[Request]) -> dict[int, int]:
        """Put requests into free slots; there must be enough. Returns their slots, and how many
        positions each already holds."""
        continued = list[int | None]()
        for request in requests:
            continued.append(slot := self._continued(request))
            if slot is not None:
                self._ended[slot] = 0
        taken = {slot for slot in continued if slot is not None}
        free = [s for s in np.flatnonzero(~self.live).tolist() if s not in taken]
        others = iter(sorted(free, key=lambda s: (self._ended[s], s)))
        placed = dict[int, int]()
        for same, request in zip(continued, requests, strict=True):
            slot = next(others) if same is None else same
            placed[slot] = 0 if same is None else int(self.positions[slot])
            known = len(request.ids)
            self._ended[slot], self._own[slot] = 0, True
            self.requests[slot] = request
            self.live[slot] = True
            self.history[slot, :known] = request.ids
            self.last[slot], self.positions[slot] = request.ids[-1], known - 1
            self.offsets[slot] = 0
            self.temperature[slot] = request.temperature
            self._prompt[slot], self._sent[slot] = known - request.prefix_tokens, known
            self._last_place[slot] = known + request.max_new_tokens - 1
            self._stream[slot] = stream(self._run_seed, request.key)
        return placed

    def _continued(self, request: Request) -> int | None:
        """The idle slot that holds the longest prefix of this request, and nothing else; none for
        one with images, whose positions are computed as a whole."""
        if request.images:
            return None
        idle = np.flatnonzero(self._ended)
        held = self.positions[idle]
        fits = held < len(request.ids)
        fits[fits] = self.history[idle[fits], held[fits] - 1] == request.ids[held[fits] - 1]
        for slot in sorted(idle[fits].tolist(), key=lambda s: -self.positions[s]):
            holds = int(self.positions[slot])
            if np.array_equal(self.history[slot, :holds], request.ids[:holds]):
                return int(slot)
        return None

    def outdate(self, *, recomputed: bool) -> None:
        """Clear idle slots after a change of weights. Contents of live ones are not shared any
        more, unless they are `recomputed`."""
        self.positions[~self.live] = 0
        self._ended[:] = 0
        self._own &= recomputed

    def draws(self, rows: int) -> NDArray[np.float64]:
        """The uniforms of the next token of the first `rows` slots."""
        return uniforms(self._stream[:rows], self.positions[:rows] + 1 - self._prompt[:rows])

    def extend(
        self,
        tokens: NDArray[np.int64],
        behaviour: NDArray[np.float32],
        routing: NDArray[np.uint8] | None = None,
    ) -> list[int]:
        """Add one token to each live one of the first `len(tokens)` slots, with its record. Returns
        the slots whose requests ended."""
        rows = len(tokens)
        live, positions = self.live[:rows], self.positions[:rows]
        positions += live
        self.last[:rows] = tokens
        places = self._rows_start[:rows] + positions
        self._flat_history[places] = tokens
        self._flat_behaviour[places] = behaviour
        if routing is not None:
            self.routing[np.arange(rows), positions] = routing
        ended = self._stops[tokens]
        ended |= positions >= self._last_place[:rows]
        ended &= live
        slots: list[int] = np.flatnonzero(ended).tolist()
        return slots

    def unsent(self) -> list[int]:
        """Live slots with unsent tokens."""
        return [int(s) for s in np.flatnonzero(self.live & (self.positions + 1 > self._sent))]

    def take(self, slot: int, version: int, finish: Finish = "") -> Chunk:
        """The unsent tokens of a slot; with `finish`, the slot is free afterwards."""
        request = self.requests[slot]
        assert request is not None
        start, end = int(self._sent[slot]), int(self.positions[slot]) + 1
        self._sent[slot] = end
        ids, behaviour = (
            self.history[slot, start:end].copy(),
            self.behaviour[slot, start:end].copy(),
        )
        records = self.routing[slot, start:end].copy() if self.routing.shape[2] else None
        first = start - int(self._prompt[slot])
        if finish:
            self.requests[slot], self.live[slot] = None, False
            if self._own[slot] and self.positions[slot]:
                self._endings += 1
                self._ended[slot] = self._endings
            else:
                self.positions[slot] = 0
        return Chunk(
            request.rollout,
            request.attempt,
            version,
            first,
            ids,
            behaviour,
            finish,
            routing=records,
        )

    def ending(self, slot: int) -> Finish:
        """The finish reason of a slot that `extend` returned."""
        return "stop" if self._stops[self.last[slot]] else "length"

    def compact(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Swap live slots into the lowest indices. Returns (to, from) of the moves, which the cache
        must repeat."""
        rows = self.occupied
        to = np.flatnonzero(~self.live[:rows])
        origin = np.flatnonzero(self.live[rows:]) + rows
        for array in (
            self.live, self.history, self.behaviour, self.routing, self.last, self.positions,
            self.temperature, self.offsets,
            self._prompt, self._last_place, self._sent, self._stream, self._own, self._ended,
        ):  # fmt: skip
            array[to], array[origin] = array[origin], array[to]
        for a, b in zip(to, origin, strict=True):
            self.requests[a], self.requests[b] = self.requests[b], None
        return to, origin
