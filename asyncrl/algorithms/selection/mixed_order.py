"""The stream of prompts of several tasks. Invariant: the task and the prompt at a position are a
function of the settings, the seed and the position alone, so there is no state to lose. Each
position draws its task by the weights of its stage. Each draw of a task takes its next prompt, in
its own order, epoch after epoch.
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
"""Number of positions that are drawn together."""
BLOCKS = 8
"""Number of blocks whose draws are kept."""


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
    epoch has as many positions as all trained tasks have prompts. The next weights begin at the
    positions in `stages`.

    >>> parts = [TaskPart("a", {"train": 2}, (1.0, 0.0)), TaskPart("b", {"train": 3}, (0.0, 1.0))]
    >>> stream = MixedOrder(parts, stages=(3,), seed=0, epochs=0)
    >>> [stream.task(position) for position in range(5)]
    [0, 0, 0, 1, 1]
    >>> sorted(stream.prompt_index(position) for position in (3, 4, 5))
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
        self._blocks: dict[
            int, list[int]
        ] = {}  # tasks at the positions of the blocks requested last

    def task(self, position: int) -> int:
        """Return the number of the task at a position, in the order of the mix."""
        block, offset = divmod(position, BLOCK)
        return self._block(block)[offset]

    def prompt_index(self, position: int) -> int:
        block, offset = divmod(position, BLOCK)
        tasks = self._block(block)
        task = tasks[offset]
        while len(self._before) <= block:
            self._count(len(self._before) - 1)
        number = self._before[block][task] + tasks[:offset].count(task)
        return self._offsets[task] + self._streams[task].prompt_index(number)

    def _count(self, block: int) -> None:
        """Count the prompts before the block after this one, the last that was counted."""
        tasks = self._block(block)
        self._before.append(
            [before + tasks.count(task) for task, before in enumerate(self._before[block])]
        )

    def _block(self, block: int) -> list[int]:
        if (tasks := self._blocks.get(block)) is None:
            draw = random.Random(f"{self.seed}/mix/{block}")
            tasks = [
                self._drawn(position, draw)
                for position in range(block * BLOCK, (block + 1) * BLOCK)
            ]
            while len(self._blocks) >= BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[block] = tasks
        return tasks

    def _drawn(self, position: int, draw: random.Random) -> int:
        weights = self._weights[bisect_right(self._stages, position)]
        return draw.choices(range(len(weights)), weights)[0]
