"""How many rollouts a prompt gets. Invariant: between `least` and `most`, whatever its history.

`fixed`        `least`
`difficulty`   as many as it takes for one of them to solve the prompt with the chance `FOUND`: the smallest n with 1 - (1 - p)^n >= FOUND,
               where p is the posterior mean of the chance that one rollout does. A prompt that was never seen gets `least`.

So `difficulty` costs more only where p < 1 - (1 - FOUND)^(1 / least), which is 0.25 for 8 rollouts.
Where no prompt is ever solved it costs `most` / `least` times what `fixed` does, and never more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from asyncrl.experience.history import History

FOUND = 0.9
"""The chance that a group has a member that solves the prompt, which `difficulty` sizes for."""


class Sizing(Protocol):
    """What sizes. 1 <= `least` <= `most`."""

    def __init__(self, least: int, most: int) -> None: ...

    def size(self, history: History, prompt_index: int) -> int:
        """The rollouts of the next group of this prompt."""
        ...


class Fixed:
    """The same for all."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least

    def size(self, history: History, prompt_index: int) -> int:
        return self._least


class ByDifficulty:
    """More for harder prompts."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def size(self, history: History, prompt_index: int) -> int:
        a, b = history.posterior(prompt_index)
        needed = math.log1p(-FOUND) / math.log1p(-a / (a + b))
        return min(max(math.ceil(needed), self._least), self._most)


SIZINGS: Mapping[str, type[Sizing]] = {"fixed": Fixed, "difficulty": ByDifficulty}
"""`rollout.sizing` in run.toml."""
