"""The decision whether a run lends the trainer's devices while it waits for a step
(`rollout.lending = switch`). It reads no clock.

A loan is worth its switch where the seconds that were used of it are more than those that it cost:

    lent     from when the trainer has nothing to do until the next step is ready
    used     the part of that after the first token
    cost     the seconds before the first token, for rollouts go on elsewhere by a prefill like that
             one, and those until all is given back, for which the trainer shares its devices

Nothing flaps. A run that lends goes on until the last `RECENT` loans, in their sum, were not worth
it. One that does not begins again where the waits of as many steps would have been `MARGIN` times
the cost, shortened by what the lent engines would have brought.

Example: a step's groups take 30 s longer than its training, half of the engines are lent, and a
loan costs 2 s. Waits of 30 s are expected to be 15 s with as many engines more, which is more than
6 s: it lends, and 13 of these 15 s are used. At waits of 10 s it would not begin: 5 s are less.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

RECENT = 16
"""Loans, or waits of steps, that decide."""
MARGIN = 3.0


class Loan(NamedTuple):
    """A loan that is over, in seconds: those before its first token, those after, and those until
    all was given back. Without a token `used_s` is 0."""

    before_s: float
    used_s: float
    back_s: float

    @property
    def cost_s(self) -> float:
        return self.before_s + self.back_s


class LendingChoice:
    """The choice of one run, which begins with lending, because the cost of a loan is unknown
    before.

    >>> choice = LendingChoice(share=1.0)
    >>> for _ in range(RECENT):
    ...     choice.lent(Loan(before_s=1.5, used_s=1.0, back_s=0.5))
    >>> choice.worth, choice.cost_s
    (False, 2.0)
    >>> for _ in range(RECENT):
    ...     choice.waited(30.0)
    >>> choice.worth, choice.changes
    (True, 2)
    """

    def __init__(self, share: float) -> None:
        """The lent engines are `share` of the others (> 0)."""
        self._share = share
        self._loans: deque[Loan] = deque(maxlen=RECENT)
        self._waits_s: deque[float] = deque(maxlen=RECENT)
        self.worth = True
        """True if a loan is worth its switch."""
        self.changes = 0
        """Number of times that this changed."""

    @property
    def cost_s(self) -> float:
        """Seconds that the last loans cost, in their mean; 0 before the first."""
        return _mean([loan.cost_s for loan in self._loans])

    @property
    def used_s(self) -> float:
        """Seconds of the last loans that were used, in their mean; 0 before the first."""
        return _mean([loan.used_s for loan in self._loans])

    def lent(self, loan: Loan) -> None:
        """Record a loan that is over."""
        self._loans.append(loan)
        if self.worth and len(self._loans) == RECENT and self.used_s <= self.cost_s:
            self._change()

    def waited(self, seconds: float) -> None:
        """Record the trainer's wait for a step, during which nothing was lent."""
        if self.worth:
            return
        self._waits_s.append(seconds)
        expected = _mean(list(self._waits_s)) / (1 + self._share)
        if len(self._waits_s) == RECENT and expected > MARGIN * self.cost_s:
            self._loans.clear()
            self._change()

    def _change(self) -> None:
        self.worth = not self.worth
        self.changes += 1
        self._waits_s.clear()


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
