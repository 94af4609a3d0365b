"""The ledger: counts of all tokens and rollouts, by their end. Invariant 1 (ledger): `total =
trained + Σ discarded[reason] + live` at every event.

Ended rollouts remain only in these counts, so the ledger's size is the number of reasons.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Account(msgspec.Struct):
    """Counts of one kind: the `total` that came in (tokens generated, rollouts admitted), and their
    ends.

    Example: 100 tokens came in, 60 of them were trained, and 10 were stale.

    >>> tokens = Account()
    >>> tokens.enter(100)
    >>> tokens.train(60)
    >>> tokens.discard(10, "stale")
    >>> tokens
    Account(total=100, trained=60, live=30, discarded={'stale': 10})
    """

    total: int = 0
    trained: int = 0
    live: int = 0
    discarded: dict[str, int] = msgspec.field(default_factory=dict)

    def enter(self, count: int) -> None:
        """Count `count` more, which are live."""
        self.total += count
        self.live += count

    def train(self, count: int) -> None:
        """Count `count` of the live as trained."""
        self.live -= count
        self.trained += count

    def discard(self, count: int, reason: str) -> None:
        """Count `count` of the live as discarded; a count of 0 adds no reason."""
        if count:
            self.live -= count
            self.discarded[reason] = self.discarded.get(reason, 0) + count

    def balances(self) -> bool:
        """True if invariant 1 holds."""
        return (
            self.live >= 0 and self.total == self.trained + sum(self.discarded.values()) + self.live
        )


class Books(msgspec.Struct):
    """One account of tokens and one of rollouts."""

    tokens: Account = msgspec.field(default_factory=Account)
    rollouts: Account = msgspec.field(default_factory=Account)
    pruned: dict[str, int] = msgspec.field(default_factory=dict)

    def end(self, trained: int, discarded: Mapping[str, int]) -> None:
        """Count an ended rollout and its tokens. It counts as trained if any token was trained, and
        else as discarded for the reason with the most tokens (of equal ones the first by name). A
        rollout without tokens is `empty`."""
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
        """True if both accounts balance."""
        return self.tokens.balances() and self.rollouts.balances()


class Ledger(Books):
    """The accounts of what the run has sampled; `foreign` are those of what was imported, whose
    totals are that. `pruned` counts the rollouts that a rule ended (`rollout.prune`), by reason:
    also those of which tokens were kept."""

    pruned: dict[str, int] = msgspec.field(default_factory=dict)
    foreign: Books = msgspec.field(default_factory=Books)

    def balances(self) -> bool:
        """True if all accounts balance."""
        return Books.balances(self) and self.foreign.balances()

    def summary(self) -> dict[str, dict[str, int | dict[str, int]]]:
        """The ledger under the names of `summary.json`: `tokens.generated`, `rollouts.admitted`,
        and their ends."""
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
