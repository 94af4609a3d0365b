"""A lane: one set of weights, its slots and its queue. Invariant: the cache of a live slot holds
the positions before its last known token, and everything a lane samples is sampled under `version`.

The cache of a request that has ended stays in its slot until that is needed, or the weights change.
A request that continues from there computes only its new tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.records import encoded, experts_of
from asyncrl.algorithms.routing.routers import passing, watch
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.embedded.engine_images import EngineImages
from asyncrl.engines.embedded.programs import Programs, new_cache
from asyncrl.engines.embedded.slots import Slots
from asyncrl.engines.protocol import Chunk, Request

COLUMNS = 16
"""Attention reads the cache up to the longest slot, rounded up to this many positions."""
ROWS = 8
"""Without a queue, the rows computed follow the live ones, rounded up to a multiple of this, or to
a power of two below."""
PATIENCE = 16
"""The most decode steps that a request waits for others to join it when a slot is free."""
_WASTE, _PADDED = 512, 4096


class Lane:
    """Decodes requests with its own copy of the weights. `step` and `load` are called under
    `computing`."""

    def __init__(
        self,
        model: PreTrainedModel,
        options: EmbeddedOptions,
        vocab_size: int,
        images: EngineImages | None = None,
    ) -> None:
        slots, context_tokens = options.slots, options.context_tokens
        stops = np.zeros(vocab_size, np.bool_)
        stops[sorted(options.stop_ids)] = True
        model.train(False)
        records = bool(watch(model)) and options.records_routing  # watched: float32, as trained
        self.model = model.requires_grad_(False)
        self._images = images
        self.version: int | None = None
        self.waiting: deque[Request] = deque()
        self._cache = new_cache(model, slots, context_tokens)
        self.programs = Programs(
            model,
            self._cache,
            compile=options.compile,
            packed_from=options.packed_from,
            records=records,
        )
        self._slots = Slots(
            slots,
            context_tokens,
            stops=stops,
            run_seed=options.run_seed,
            routing=_record_bytes(model) if records else 0,
        )
        self._count, self._context = slots, context_tokens
        self._enough = max(1, slots // 8)
        self._rows = 0
        self._waited = 0
        self._columns = torch.arange(context_tokens)

    @property
    def busy(self) -> bool:
        """True if there is work for a step."""
        return self.version is not None and (self._slots.occupied > 0 or bool(self.waiting))

    def load(self, version: int, weights: Mapping[str, Tensor], *, recompute: bool) -> None:
        """Copy weights, whose names were checked; recompute the cache of live slots or keep it."""
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if name in weights:
                parameter.copy_(weights[name])
        self.adopt(version, recompute=recompute)

    def adopt(self, version: int, *, recompute: bool) -> None:
        """Continue with weights that were written in place, as `load` does."""
        self.programs.repack()
        self.version = version
        self._slots.outdate(recomputed=recompute)
        if recompute:
            self._prefill(dict.fromkeys(np.flatnonzero(self._slots.live).tolist(), 0))

    def step(self) -> list[Chunk]:
        """Refill if it pays, and decode one token in every live slot. Returns the last chunks of
        rollouts that ended."""
        self._refill()
        slots = self._slots
        if not slots.occupied:
            return []
        if not self.waiting and (rows := _row_bucket(slots.occupied, self._count)) < self._rows:
            self._compact(rows)
        rows = self._rows
        columns = _rounded(int(slots.positions[slots.live].max()) + 1, COLUMNS, self._context)
        tokens, behaviour, *routing = self.programs.decode(rows)(
            torch.from_numpy(slots.last[:rows]),
            torch.from_numpy(slots.positions[:rows]),
            torch.from_numpy(slots.offsets[:rows]),
            self._columns[:columns],
            torch.from_numpy(slots.temperature[:rows]),
            torch.from_numpy(slots.draws(rows)),
            *self._cache,
        )
        assert self.version is not None
        return [
            slots.take(s, self.version, slots.ending(s))
            for s in slots.extend(tokens.numpy(), behaviour.numpy(), *(r.numpy() for r in routing))
        ]

    def flush(self) -> list[Chunk]:
        """Flush every token that was not sent yet."""
        return [self._slots.take(s, self._stamp, "") for s in self._slots.unsent()]

    def interrupt(self, chosen: Callable[[Request], bool]) -> list[Chunk]:
        """End the chosen requests, decoding or waiting, with their tokens so far."""
        slots = self._slots
        ending = [
            s for s, request in enumerate(slots.requests) if request is not None and chosen(request)
        ]
        chunks = [slots.take(s, self._stamp, "interrupted") for s in ending]
        chunks += [unstarted(request, self._stamp) for request in self.waiting if chosen(request)]
        self.waiting = deque(request for request in self.waiting if not chosen(request))
        return chunks

    @property
    def _stamp(self) -> int:
        return 0 if self.version is None else self.version

    def _refill(self) -> None:
        free = self._count - self._slots.occupied
        if not self.waiting or not free:
            return
        if free < self._count and free < self._enough and self._waited < PATIENCE:
            self._waited += 1
            return
        self._waited = 0
        chosen = self._slots.place(
            [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]
        )
        self._rows = max(self._rows, _row_bucket(max(chosen) + 1, self._count))
        self._prefill(chosen)

    def _compact(self, rows: int) -> None:
        to, origin = (torch.from_numpy(places) for places in self._slots.compact())
        used = int(self._slots.positions.max()) + 1
        for number, tensor in enumerate(self._cache):
            part = tensor[:, :, :used] if number % 2 else tensor[..., :used]
            part[to], part[origin] = part[origin], part[to]
        self._rows = rows

    def _prefill(self, chosen: Mapping[int, int]) -> None:
        """Compute the cache of these slots up to their last known token, each of which already
        holds the given number of positions. Equal contents of empty slots are computed once."""
        slots = self._slots
        self._go_on({slot: held for slot, held in chosen.items() if held})
        places: dict[bytes, list[int]] = {}
        for slot, held in chosen.items():
            if slots.positions[slot] and not held:
                places.setdefault(
                    slots.history[slot, : slots.positions[slot]].tobytes(), []
                ).append(slot)
        for known in [known for known in places if np.frombuffer(known, np.int32).min() < 0]:
            self._see(known, places.pop(known))
        contents = sorted(places, key=len, reverse=True)
        for part in _batches([len(known) // 4 for known in contents]):
            batch = contents[part]
            ids = np.zeros((len(batch), len(batch[0]) // 4), np.int64)
            for row, known in enumerate(batch):
                ids[row, : len(known) // 4] = np.frombuffer(known, np.int32)
            targets = [slot for known in batch for slot in places[known]]
            source = [row for row, known in enumerate(batch) for _ in places[known]]
            self.programs.prefill(
                torch.from_numpy(ids), torch.tensor(targets), torch.tensor(source), *self._cache
            )

    def _see(self, known: bytes, targets: Sequence[int]) -> None:
        """Compute the cache of these slots, which hold the same text with images."""
        request = self._slots.requests[targets[0]]
        assert self._images is not None and request is not None
        ids = torch.from_numpy(np.frombuffer(known, np.int32).astype(np.int64))
        seen = self._images.seen(self.model, ids, request.images)
        self._slots.offsets[list(targets)] = seen.offset
        self.programs.seen(
            seen.ids, seen.shown, seen.positions, torch.tensor(targets), *self._cache
        )

    def _go_on(self, held: Mapping[int, int]) -> None:
        """Compute the cache of these slots from the first position they do not hold."""
        positions = self._slots.positions
        due = sorted(
            (slot for slot in held if positions[slot] > held[slot]),
            key=lambda slot: held[slot] - positions[slot],
        )
        for part in _batches([int(positions[slot]) - held[slot] for slot in due]):
            batch = due[part]
            ids = np.zeros((len(batch), int(positions[batch[0]]) - held[batch[0]]), np.int64)
            for row, slot in enumerate(batch):
                new = self._slots.history[slot, held[slot] : positions[slot]]
                ids[row, : len(new)] = new
            columns = _rounded(int(positions[batch].max()), COLUMNS, self._context)
            self.programs.onward(
                torch.from_numpy(ids),
                torch.tensor([held[slot] for slot in batch]),
                torch.tensor(batch),
                self._columns[:columns],
                *self._cache,
            )


@torch.no_grad()
def _record_bytes(model: PreTrainedModel) -> int:
    """The bytes of a token's record. Raises ValueError where the model's routers have none."""
    with passing(model) as passed:
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False)
    assert passed is not None
    return encoded(passed, experts_of(model)).shape[1]


def unstarted(request: Request, version: int) -> Chunk:
    """The last chunk of a request that was never decoded."""
    return Chunk(
        request.rollout,
        request.attempt,
        version,
        request.prefix_tokens,
        np.zeros(0, np.int32),
        np.zeros(0, np.float32),
        "interrupted",
    )


def _rounded(count: int, unit: int, limit: int) -> int:
    return min(-(-count // unit) * unit, limit)


def _row_bucket(rows: int, limit: int) -> int:
    return min(1 << (rows - 1).bit_length(), limit) if rows <= ROWS else _rounded(rows, ROWS, limit)


def _batches(lengths: Sequence[int]) -> list[slice]:
    """Split contents, by their token counts (the longest first), into batches with a bounded padded
    size and bounded padding."""
    batches = list[slice]()
    first = waste = 0
    for row, tokens in enumerate(lengths):
        longest = lengths[first]
        waste += longest - tokens
        if row > first and (waste > _WASTE or (row + 1 - first) * longest > _PADDED):
            batches.append(slice(first, row))
            first, waste = row, 0
    if lengths:
        batches.append(slice(first, len(lengths)))
    return batches
