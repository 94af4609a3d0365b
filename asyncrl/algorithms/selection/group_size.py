"""Number of rollouts of a prompt. Invariant: it is between `least` and `most`, whatever the
history.

`fixed`        `least`
`difficulty`   as many as make it likely (`FOUND`) that one of them solves the prompt

With `difficulty` that is the smallest n with 1 - (1 - p)^n >= FOUND, where p is the posterior mean
of the chance that one rollout solves the prompt. Example: p = 0.1 needs 22 rollouts, as
1 - 0.9^22 = 0.902. A prompt that was never seen gets `least`.

So `difficulty` costs more only where p < 1 - (1 - FOUND)^(1 / least), which is 0.25 for 8 rollouts.
Where no prompt is ever solved it costs `most` / `least` times as much as `fixed`, and never more.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

from asyncrl.algorithms.selection.prompt_history import History

FOUND = 0.9
"""Target of `difficulty`: the chance that a member of a group solves the prompt."""


class Sizing(Protocol):
    """Rule for the size of groups. 1 <= `least` <= `most`: `rollout.group_size` and
    `rollout.group_size_max` (with `fixed` both are `group_size`). It is created once, and
    docs/extending.md adds one.

    >>> class Halved(Sizing):
    ...     def __init__(self, least, most):
    ...         self._least, self._most = least, most
    ...     def size(self, history, prompt_index):
    ...         return self._most if prompt_index % 2 else self._least
    >>> Halved(8, 16).size(History(), prompt_index=3)
    16
    """

    def __init__(self, least: int, most: int) -> None: ...

    def size(self, history: History, prompt_index: int) -> int:
        """Return the number of rollouts of the next group of this prompt."""
        ...


class Fixed(Sizing):
    """The same size for all.

    >>> Fixed(8, 16).size(History(), prompt_index=3)
    8
    """

    kind: ClassVar[str] = "fixed"

    def __init__(self, least: int, most: int) -> None:
        self._least = least

    def size(self, history: History, prompt_index: int) -> int:
        return self._least


class ByDifficulty(Sizing):
    """More for harder prompts.

    Eight rollouts failed, so p is 1 / 10, and 22 would be needed:

    >>> history = History()
    >>> history.admit(3, cursor=1)
    >>> history.record(3, rewards=[0.0] * 8, size=8)
    >>> ByDifficulty(8, 64).size(history, 3), ByDifficulty(8, 16).size(history, 3)
    (22, 16)
    """

    kind: ClassVar[str] = "difficulty"

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def size(self, history: History, prompt_index: int) -> int:
        a, b = history.posterior(prompt_index)
        needed = math.log1p(-FOUND) / math.log1p(-a / (a + b))
        return min(max(math.ceil(needed), self._least), self._most)
