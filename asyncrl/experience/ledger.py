"""What became of everything. Invariant 1 (ledger): `total = trained + Σ discarded[reason] + live`
at every event.

It counts tokens and rollouts. The ledger is all that remains of finished business, so its size is
the number of reasons.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Account(msgspec.Struct):
    """One counted thing: `total` that came in (tokens generated, rollouts admitted), and where they
    are now."""

    total: int = 0
    trained: int = 0
    live: int = 0
    discarded: dict[str, int] = msgspec.field(default_factory=dict)

    def enter(self, count: int) -> None:
        self.total += count
        self.live += count

    def train(self, count: int) -> None:
        self.live -= count
        self.trained += count

    def discard(self, count: int, reason: str) -> None:
        """`count` of the live leave without being trained; none leaves no trace."""
        if count:
            self.live -= count
            self.discarded[reason] = self.discarded.get(reason, 0) + count

    def balances(self) -> bool:
        return (
            self.live >= 0 and self.total == self.trained + sum(self.discarded.values()) + self.live
        )


class Ledger(msgspec.Struct):
    """Tokens and rollouts."""

    tokens: Account = msgspec.field(default_factory=Account)
    rollouts: Account = msgspec.field(default_factory=Account)

    def end(self, trained: int, discarded: Mapping[str, int]) -> None:
        """A rollout is over, and this became of its tokens. It counts as trained where any token
        was, or else as discarded for the reason that took the most of them; one without tokens is
        `empty`."""
        self.tokens.train(trained)
        for reason, count in discarded.items():
            self.tokens.discard(count, reason)
        if trained:
            self.rollouts.train(1)
        else:
            reason, _ = min(
                discarded.items(), key=lambda item: (-item[1], item[0]), default=("empty", 0)
            )
            self.rollouts.discard(1, reason)

    def balances(self) -> bool:
        return self.tokens.balances() and self.rollouts.balances()

    def summary(self) -> dict[str, dict[str, int | dict[str, int]]]:
        """The ledger under the names of `summary.json`: `tokens.generated`, `rollouts.admitted`,
        and what became of them."""
        return {
            thing: {
                entered: a.total,
                "trained": a.trained,
                "discarded": dict(sorted(a.discarded.items())),
                "live": a.live,
            }
            for thing, entered, a in (
                ("tokens", "generated", self.tokens),
                ("rollouts", "admitted", self.rollouts),
            )
        }
