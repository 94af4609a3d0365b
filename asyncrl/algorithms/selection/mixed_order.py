"""The stream of prompts of several tasks. Invariant: the task and the prompt at a place are a
function of the settings, the seed and the place alone, so there is no state that could be lost.

Each place draws its task by the weights of its stage. A task's prompts come in its own order, its
epochs one after the other, each time it is drawn.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from asyncrl.algorithms.selection.curriculum import PromptOrder
from asyncrl.messages import Split

BLOCK = 1024
"""Places whose draws are made together."""
BLOCKS = 8
"""Blocks whose draws are kept."""


class TaskPart(NamedTuple):
    """One task of a mix: its label, its prompts in each split, and its share in each stage.

    >>> sums = TaskPart("sums", {"train": 90, "evaluation": 10}, (0.25, 0.5))
    >>> sums.sizes["train"], sums.shares[1]
    (90, 0.5)
    """

    label: str
    sizes: Mapping[Split, int]
    shares: Sequence[float]


class MixedOrder(PromptOrder):
    """The run's stream of several tasks' prompts, which are numbered one task after the other. An
    epoch has as many places as all tasks that are trained have prompts. At the places in `stages`
    the next weights begin.

    >>> parts = [TaskPart("a", {"train": 2}, (1.0, 0.0)), TaskPart("b", {"train": 3}, (0.0, 1.0))]
    >>> stream = MixedOrder(parts, stages=(3,), seed=0, epochs=0)
    >>> [stream.task(place) for place in range(5)]
    [0, 0, 0, 1, 1]
    >>> sorted(stream.prompt_index(place) for place in (3, 4, 5))
    [2, 3, 4]
    """

    def __init__(
        self, parts: Sequence[TaskPart], *, stages: Sequence[int], seed: int, epochs: int
    ) -> None:
        sizes = [part.sizes["train"] for part in parts]
        trained = [any(part.shares) for part in parts]
        super().__init__(
            sum(size for size, used in zip(sizes, trained, strict=True) if used),
            seed=seed,
            epochs=epochs,
        )
        self._streams = [PromptOrder(size, seed=seed, epochs=0) for size in sizes]
        self._offsets = [0, *accumulate(sizes)]
        self._stages = list(stages)
        self._weights = list(zip(*(part.shares for part in parts), strict=True))
        self._before = [[0] * len(parts)]  # prompts of each task before each block
        self._blocks: dict[int, list[int]] = {}  # tasks at the places of blocks asked for last

    def task(self, place: int) -> int:
        """Return the number of the task at a place, in the order of the mix."""
        block, at = divmod(place, BLOCK)
        return self._block(block)[at]

    def prompt_index(self, place: int) -> int:
        block, at = divmod(place, BLOCK)
        tasks = self._block(block)
        task = tasks[at]
        while len(self._before) <= block:
            self._count(len(self._before) - 1)
        number = self._before[block][task] + tasks[:at].count(task)
        return self._offsets[task] + self._streams[task].prompt_index(number)

    def _count(self, block: int) -> None:
        """Count the prompts before the block after this one, the last that was counted."""
        tasks = self._block(block)
        self._before.append(
            [before + tasks.count(task) for task, before in enumerate(self._before[block])]
        )

    def _block(self, block: int) -> list[int]:
        if (found := self._blocks.get(block)) is None:
            draw = random.Random(f"{self.seed}/mix/{block}")
            found = [
                self._drawn(place, draw) for place in range(block * BLOCK, (block + 1) * BLOCK)
            ]
            while len(self._blocks) >= BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[block] = found
        return found

    def _drawn(self, place: int, draw: random.Random) -> int:
        weights = self._weights[bisect_right(self._stages, place)]
        return draw.choices(range(len(weights)), weights)[0]
