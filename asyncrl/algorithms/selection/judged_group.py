"""A finished group as strategies see it. Invariant: everything is of the journal, so a resumed run
shows the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class JudgedGroup(NamedTuple):
    """A group whose members are all judged or buried: one entry for each member with a reward.

    `returns` has what its advantages compare, at each turn: rewards, or with a credit by turn
    returns (`compared` has them in any case). `parts` are those of the rewards (empty where
    verifiers give one), `lengths` the sampled tokens.

    >>> JudgedGroup([1.0, 0.0]).compared
    [(1.0, 0.0)]
    """

    rewards: Sequence[float]
    returns: Sequence[tuple[float, ...]] = ()
    parts: Sequence[Sequence[float]] = ()
    lengths: Sequence[int] = ()

    @property
    def compared(self) -> Sequence[tuple[float, ...]]:
        """The numbers that its advantages compare, at each turn."""
        return self.returns or [tuple(self.rewards)]
