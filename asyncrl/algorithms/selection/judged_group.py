"""A finished group and its members as strategies see them. Invariant: everything comes from the
journal, so a resumed run shows the same."""

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


class JudgedMember(NamedTuple):
    """A member with a reward, as rules see it.

    `right`: its answer is fully right. `parts` are those of its reward (empty where verifiers give
    one), `tokens` the sampled ones, of the mean log-probability `logprob` when they were sampled;
    `cut`: it ended at its budget. Of an agent's episode: its `turns`, those of them that were a
    failed call of a tool (`failed`), and the `keys` of its turns.

    >>> JudgedMember(1.0, right=True, turns=3, failed=1).calls
    2
    """

    reward: float
    right: bool = False
    parts: Sequence[float] = ()
    tokens: int = 0
    logprob: float = 0.0
    cut: bool = False
    turns: int = 1
    failed: int = 0
    keys: Sequence[str] = ()

    @property
    def calls(self) -> int:
        """Calls of tools: each turn but the last was answered by one, or by an environment."""
        return self.turns - 1
