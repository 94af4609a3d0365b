"""An episode of eight turns through the embedded engine: tokens that its prefills compute, and the
seconds of its calls, where the context of an ended call stays in its slot and where it does not
(the same weights are loaded between two calls, which is not timed).

Each turn gives 64 tokens more and samples 32. The sides take turns; medians are printed, and the
largest difference of a log-probability between them.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from decode import build

from asyncrl.engines.embedded.batcher import Batcher
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Request

TURNS, GIVEN, SAMPLED = 8, 64, 32
CONTEXT = TURNS * (GIVEN + SAMPLED)


class Counted:
    """The programs of a lane, and the tokens that their prefills computed."""

    def __init__(self, programs: object) -> None:
        self._programs, self.tokens = programs, 0

    def __getattr__(self, name: str) -> object:
        found = getattr(self._programs, name)
        if name not in ("prefill", "onward"):
            return found

        def counting(ids: torch.Tensor, *more: torch.Tensor) -> object:
            self.tokens += ids.numel()
            return found(ids, *more)

        return counting


def episode(
    batcher: Batcher,
    counted: Counted,
    given: np.ndarray,
    replies: Sequence[np.ndarray],
    again: bool,
) -> tuple[float, int, list[np.ndarray], np.ndarray]:
    """Play it: seconds of its calls, tokens computed, what was sampled, and log-probabilities.
    Contexts have these replies, where there are some, so that both sides compute the same."""
    context, seconds, before = np.zeros(0, np.int32), 0.0, counted.tokens
    sampled, behaviour = list[np.ndarray](), list[np.ndarray]()
    weights = {name: p.clone() for name, p in batcher._current.model.named_parameters()}
    for turn in range(TURNS):
        context = np.concatenate([context, given[turn]])
        if again or not turn:
            batcher.load(0, weights, pin=False)
        begun = time.perf_counter()
        batcher.submit([Request(turn, 1, turn, context, 0, SAMPLED, 1.0)])
        ids = list[np.ndarray]()
        while batcher.has_work:
            for chunk in batcher.advance(8):
                ids.append(chunk.ids)
                behaviour.append(chunk.behaviour)
        seconds += time.perf_counter() - begun
        sampled.append(np.concatenate(ids))
        context = np.concatenate([context, replies[turn] if replies else sampled[-1]])
    return seconds, counted.tokens - before, sampled, np.concatenate(behaviour)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=["tiny", "large"], default="large")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = build(arguments.size)
    model.config.max_position_embeddings = CONTEXT
    batcher = Batcher(
        copy.deepcopy(model),
        EmbeddedOptions(
            slots=8,
            context_tokens=CONTEXT,
            chunk_tokens=8,
            stop_ids=frozenset(),
            run_seed=0,
            compile=arguments.compile,
        ),
    )
    counted = Counted(batcher._current.programs)
    batcher._current.programs = counted  # type: ignore[assignment]
    given = np.random.default_rng(0).integers(1, 64, (TURNS, GIVEN)).astype(np.int32)
    replies = episode(batcher, counted, given, [], True)[2]
    runs: dict[bool, list[tuple[float, int, list[np.ndarray], np.ndarray]]] = {True: [], False: []}
    for _ in range(arguments.repeat):
        for again in (True, False):
            runs[again].append(episode(batcher, counted, given, replies, again))
    for again, label in ((True, "computed again"), (False, "gone on")):
        seconds = statistics.median(run[0] for run in runs[again])
        print(f"{label:15} {runs[again][0][1]:6} tokens prefilled, {seconds:.3f} s of calls")
    same = all(map(np.array_equal, runs[True][0][2], runs[False][0][2]))
    error = float(np.abs(runs[True][0][3] - runs[False][0][3]).max())
    print(f"the same tokens: {same}; largest difference of a log-probability: {error:.1e}")


if __name__ == "__main__":
    main()
