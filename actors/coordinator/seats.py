"""The engines that are connected, as the coordinator knows them. Invariant: a rollout is held by at most one seat, and a seat holds at
most what its engine decodes now and next, of training and of evaluation each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from actors.coordinator.peers import Peer
from asyncrl.messages import Purpose

AHEAD = 4
"""A seat is given 1/AHEAD more rollouts than its engine has slots, so that a slot is refilled without asking."""


@dataclass(eq=False)
class Seat:
    """One engine: what it serves, and what it holds."""

    peer: Peer
    slots: int
    version: int | None = None
    pinned: int | None = None
    held: dict[Purpose, set[int]] = field(default_factory=lambda: {"train": set(), "evaluation": set()})

    @property
    def name(self) -> str:
        return self.peer.name

    def room(self, purpose: Purpose, version: int | None) -> int:
        """How many more rollouts of a purpose it may be given; none before it has weights, or pinned ones of another version."""
        serves = self.version is not None and (version is None or version == self.pinned)
        return max(0, self.slots + self.slots // AHEAD - len(self.held[purpose])) if serves else 0


class Seats:
    """Every seat, by its actor's name."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}

    def add(self, seat: Seat) -> None:
        self._seats[seat.name] = seat

    def remove(self, name: str) -> Seat | None:
        return self._seats.pop(name, None)

    def get(self, name: str) -> Seat | None:
        return self._seats.get(name)

    def __iter__(self) -> Iterator[Seat]:
        return iter(list(self._seats.values()))

    def release(self, name: str, rollout: int, purpose: Purpose) -> None:
        """The named seat holds this rollout no more."""
        if (seat := self._seats.get(name)) is not None:
            seat.held[purpose].discard(rollout)
