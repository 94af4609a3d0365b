"""Messages of games: episodes that several runs play together, each a run of one policy.

A game has the same key in each of its runs: that of the draws of its rollout (`Admitted.key` and
the rollout's place in its group), which is in the journal of each.
"""

from __future__ import annotations

from typing import Literal

from asyncrl.messages.parts import Message, Part

GameState = Literal["ended", "given_up", "gone"]
"""A game that cannot be played (again) in a run: its rollout has ended well, was buried or dropped,
or is not known any more."""

OUTCOME = "asyncrl/outcome/"
"""Start of the names under which a host notes how a game ended, before it ends in other runs."""
PROMISED = "asyncrl/promised"
"""The name under which each run notes that it does not give a game up, before any run ends it."""


class Standing(Part, frozen=True):
    """The games of a host's run: keys from `next` on are to come; of the earlier ones those of the
    groups in `live` (the keys of their first members) may still be played, but for the games
    `buried`."""

    next: int
    live: list[int]
    buried: list[int]


class Seek(Message, frozen=True):
    """Agents actor of a guest to its coordinator: the host's agent plays the game `key` now. It is
    answered by a `Play` with this `ticket`, as soon as the run has admitted the game, or by
    `NoSeat`."""

    ticket: int
    key: int
    standing: Standing


class Unseek(Message, frozen=True):
    """Agents actor of a guest to its coordinator: nobody waits for this ticket any more."""

    ticket: int


class NoSeat(Message, frozen=True):
    """Coordinator to the agents actor of a guest: the game of this ticket cannot be played."""

    ticket: int
    state: GameState


class KeepGame(Message, frozen=True):
    """Agents actor to coordinator: say when all that was said so far is on the disk."""

    ticket: int
    rollout: int
    attempt: int


class Kept(Message, frozen=True):
    """Coordinator to agents actor: it is. The attempt is `live`, or its rollout has `ended` well,
    or neither (`over`)."""

    ticket: int
    state: Literal["live", "ended", "over"]
