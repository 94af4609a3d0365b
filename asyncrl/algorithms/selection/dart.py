"""DART's number of rollouts: fewer for prompts that are mostly solved.

Up to a solve rate of SOLVED a prompt has `most` rollouts; from there on fewer in proportion, to
`least` where all solve it. The notes that are published give the bound, and not the slope.
"""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.selection.group_size import Sizing
from asyncrl.algorithms.selection.prompt_history import History

SOLVED = 0.6


class FewerWhereSolved(Sizing):
    """`most` for a prompt that nothing is known of, few for one that 38 of 38 rollouts solved.

    >>> history = History()
    >>> history.admit(3, cursor=1)
    >>> sizing = FewerWhereSolved(2, 8)
    >>> before = sizing.size(history, 3)
    >>> history.record(3, rewards=[1.0] * 38, size=38)
    >>> before, sizing.size(history, 3)
    (8, 2)
    """

    kind: ClassVar[str] = "dart"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def size(self, history: History, prompt_index: int) -> int:
        a, b = history.posterior(prompt_index)
        over = max(0.0, a / (a + b) - SOLVED) / (1 - SOLVED)
        return self._most - round(over * (self._most - self._least))
