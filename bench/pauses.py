"""The embedded engine's pause for a publication, against its decode step: 200 times other weights
while all slots decode, in one process, `--threads` of torch.

A load is what a staged publication has an engine stand still for: verified weights, which lie in
this process, are copied over the engine's own between two decode steps. `--direct` takes the other
path, whose pause holds the broadcast too; what is timed here is its last part alone: the engine
stands still, weights are written in place, and it goes on with them.

The ratio is the pause over the median decode step of the same engine and minute, steps in which no
weights came. Aim: 1.5 at the 99th percentile of the pauses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import torch
import trio
from decode import CONTEXT, PROMPT, SIZES, build, prompts

from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Chunk, Request

EVERY = 10
"""Decode steps between two publications."""
WARM = 5
"""Publications that are not counted."""


class Decoding:
    """An engine whose slots are always busy; the seconds of its steps and pauses."""

    def __init__(self, size: str, slots: int) -> None:
        model = build(size)
        self.weights = [
            {name: p.detach() + step * 1e-6 for name, p in model.named_parameters()}
            for step in (0, 1)
        ]
        self.megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
        options = EmbeddedOptions(
            slots=slots,
            context_tokens=CONTEXT,
            chunk_tokens=1,  # so that a turn of the engine is a step
            stop_ids=frozenset(),
            run_seed=0,
            kv="keep",
            compile=True,
        )
        self.engine = EmbeddedEngine(model, options)
        self.steps: list[float] = []
        self.pauses: list[float] = []
        self._last, self._interrupted = 0.0, False
        self._next = 0
        self._stepped = trio.Event()

    async def run(self, publications: int, direct: bool) -> None:
        """Decode until so many publications are loaded."""
        await self.engine.load(0, self.weights[0])
        self._submit(self.engine.slots)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.engine.run, self._emit)
            for version in range(1, publications + WARM + 1):
                for _ in range(EVERY):
                    await self._stepped.wait()
                pause = await (self._in_place if direct else self._load)(version)
                self._interrupted = True
                if version > WARM:
                    self.pauses.append(pause)
            nursery.cancel_scope.cancel()

    async def _load(self, version: int) -> float:
        return await self.engine.load(version, self.weights[version % 2])

    async def _in_place(self, version: int) -> float:
        own, given = await self.engine.quiesce(), self.weights[version % 2]

        def write() -> None:
            for name, tensor in own.items():
                tensor.copy_(given[name])

        await trio.to_thread.run_sync(write)
        return await self.engine.adopt(version)

    async def _emit(self, chunks: Sequence[Chunk]) -> None:
        now = time.perf_counter()
        if self._last and not self._interrupted:
            self.steps.append(now - self._last)
        self._last, self._interrupted = now, False
        self._submit(sum(chunk.finish != "" for chunk in chunks))
        stepped, self._stepped = self._stepped, trio.Event()
        stepped.set()
        await trio.lowlevel.checkpoint()

    def _submit(self, count: int) -> None:
        for ids in prompts(count):
            self._next += 1
            budget = CONTEXT - PROMPT - self._next % 40
            self.engine.submit([Request(self._next, 1, self._next, ids, 0, budget, 1.0)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--publications", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--direct", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for size in options.sizes:
        found = Decoding(size, options.slots)
        trio.run(found.run, options.publications, options.direct)
        step = statistics.median(found.steps)
        pauses = sorted(found.pauses)
        p99 = pauses[min(len(pauses) - 1, -(-99 * len(pauses) // 100) - 1)]
        row = {
            "size": size,
            "path": "direct" if options.direct else "staged",
            "megabytes": round(found.megabytes, 1),
            "publications": len(pauses),
            "step_ms": round(1e3 * step, 2),
            "pause_ms": {
                "median": round(1e3 * statistics.median(pauses), 2),
                "p99": round(1e3 * p99, 2),
                "longest": round(1e3 * pauses[-1], 2),
            },
            "p99_over_step": round(p99 / step, 2),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
