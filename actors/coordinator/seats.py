"""The engines that are connected, as the coordinator knows them. Invariant: a rollout is held by at most one seat, a seat holds at most
what its engine decodes now and next, of training and of evaluation each, and is found by its room under each service that it gives.

Only `Seats` changes a seat, so that what is asked at every message (who has room, who is behind) costs the same with any number of engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from actors.coordinator.peers import Peer
from asyncrl.messages import Purpose

AHEAD = 4
"""A seat is given 1/AHEAD more rollouts than its engine has slots, so that a slot is refilled without asking."""

PURPOSES: tuple[Purpose, Purpose] = ("train", "evaluation")
Service = tuple[Purpose, int | None]
"""What rollouts ask of a seat: to train, with whatever is current (None); to train or to evaluate, with the weights of one version."""


@dataclass(eq=False)
class Seat:
    """One engine: what it serves, and what it holds."""

    peer: Peer
    slots: int
    version: int | None = None
    kept: set[int] = field(default_factory=set)  # versions that it serves until it is told to forget them
    held: dict[Purpose, set[int]] = field(default_factory=lambda: {"train": set(), "evaluation": set()})

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def services(self) -> list[Service]:
        """None before it has weights."""
        if self.version is None:
            return []
        return [("train", None), *((purpose, version) for version in self.kept for purpose in PURPOSES)]

    def room(self, purpose: Purpose) -> int:
        """How many more rollouts of a purpose it may be given, once it serves it."""
        return self.slots + self.slots // AHEAD - len(self.held[purpose])


class Seats:
    """Every seat, by its actor's name."""

    def __init__(self, *, keeps: bool = True) -> None:
        """`keeps` says whether an engine keeps a version that is pinned beside later ones."""
        self._keeps = keeps
        self._seats: dict[str, Seat] = {}
        self._serving: dict[Service, dict[int, dict[str, Seat]]] = {}  # by room, and by name; nothing in it is empty
        self._versions: Counter[int | None] = Counter()  # none of it is zero
        self.held: Counter[Purpose] = Counter()
        """Rollouts that are with engines."""

    def add(self, seat: Seat) -> None:
        """A new seat, without weights; it takes the place of one of its name."""
        self.remove(seat.name)
        self._seats[seat.name] = seat
        self._count(seat, 1)

    def remove(self, name: str) -> Seat | None:
        if (seat := self._seats.pop(name, None)) is not None:
            self._leave(seat)
            self._count(seat, -1)
            self.held.subtract({purpose: len(held) for purpose, held in seat.held.items()})
        return seat

    def get(self, name: str) -> Seat | None:
        return self._seats.get(name)

    def __iter__(self) -> Iterator[Seat]:
        return iter(list(self._seats.values()))

    # ------------------------------------------------------------------------------------------------------- services

    def serve(self, name: str, version: int, *, pin: bool) -> None:
        """The named seat decodes with `version`, and with `pin` keeps it."""
        if (seat := self._seats.get(name)) is not None:
            self._leave(seat)
            self._count(seat, -1)
            seat.version = version
            self._count(seat, 1)
            if not self._keeps:
                seat.kept.clear()
            if pin:
                seat.kept.add(version)
            self._enter(seat)

    def unpin(self, version: int) -> list[Seat]:
        """Nobody keeps `version` any more; those that did."""
        seats = [seat for seats in self._serving.get(("evaluation", version), {}).values() for seat in seats.values()]
        for seat in seats:
            self._leave(seat)
            seat.kept.remove(version)
            self._enter(seat)
        return seats

    def serves(self, purpose: Purpose, version: int | None) -> bool:
        """Whether any seat gives this service."""
        return (purpose, version) in self._serving

    @property
    def kept(self) -> set[int]:
        """The versions that any seat keeps."""
        return {version for _, version in self._serving if version is not None}

    @property
    def current(self) -> set[int]:
        """The versions that seats decode with."""
        return {version for version in self._versions if version is not None}

    def behind(self, version: int) -> bool:
        """Whether any seat does not decode with `version`."""
        return self._versions[version] < len(self._seats)

    # ----------------------------------------------------------------------------------------------------------- room

    def room(self, purpose: Purpose, version: int | None) -> int:
        """How many more rollouts those that give this service may be given."""
        return sum(room * len(seats) for room, seats in self._serving.get((purpose, version), {}).items())

    def roomiest(self, purpose: Purpose, version: int | None, but: str = "") -> Seat:
        """A seat with the most room among those that give this service, of which there must be one; the first to have had that much. The
        seat named `but` is taken only where no other has room."""
        rooms = self._serving[purpose, version]
        for room in sorted(rooms, reverse=True) if but else ():
            if room > 0 and (other := next((seat for name, seat in rooms[room].items() if name != but), None)) is not None:
                return other
        return next(iter(rooms[max(rooms)].values()))

    def hold(self, seat: Seat, rollout: int, purpose: Purpose) -> None:
        """The seat is given this rollout."""
        self._leave(seat)
        seat.held[purpose].add(rollout)
        self.held[purpose] += 1
        self._enter(seat)

    def release(self, name: str, rollout: int, purpose: Purpose) -> None:
        """The named seat holds this rollout no more."""
        seat = self._seats.get(name)
        if seat is not None and rollout in seat.held[purpose]:
            self._leave(seat)
            seat.held[purpose].remove(rollout)
            self.held[purpose] -= 1
            self._enter(seat)

    # ---------------------------------------------------------------------------------------------------------- index

    def _count(self, seat: Seat, sign: int) -> None:
        self._versions[seat.version] += sign
        if not self._versions[seat.version]:
            del self._versions[seat.version]

    def _enter(self, seat: Seat) -> None:
        for service in seat.services:
            self._serving.setdefault(service, {}).setdefault(seat.room(service[0]), {})[seat.name] = seat

    def _leave(self, seat: Seat) -> None:
        for service in seat.services:
            rooms, room = self._serving[service], seat.room(service[0])
            del rooms[room][seat.name]
            if not rooms[room]:
                del rooms[room]
            if not rooms:
                del self._serving[service]
