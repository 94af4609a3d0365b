"""The engines that are connected, as the coordinator knows them. Invariant: a rollout is held by at
most one seat, a seat holds at most what its engine decodes now and next, of training and of
evaluation each, and is found by its room under each service that it gives.

Only `EnginePool` changes a seat, so that what is asked at every message (who has room, who is
behind) costs the same with any number of engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from actors.coordinator.peers import Peer
from asyncrl.ipc.messages import Split

AHEAD = 4
"""A seat is given 1/AHEAD more rollouts than its engine has slots, so that a slot is refilled
without asking."""

PURPOSES: tuple[Split, Split] = ("train", "evaluation")
Service = tuple[Split, int | None]
"""What rollouts ask of a seat: to train, with whatever is current (None); to train or to evaluate,
with the weights of one version."""


@dataclass(eq=False)
class EngineHandle:
    """One engine: what it serves, and what it holds."""

    peer: Peer
    slots: int
    version: int | None = None
    kept: set[int] = field(
        default_factory=set
    )  # versions that it serves until it is told to forget them
    held: dict[Split, set[int]] = field(
        default_factory=lambda: {"train": set(), "evaluation": set()}
    )

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def services(self) -> list[Service]:
        """None before it has weights."""
        if self.version is None:
            return []
        return [("train", None), *((split, version) for version in self.kept for split in PURPOSES)]

    def room(self, split: Split) -> int:
        """How many more rollouts of a purpose it may be given, once it serves it."""
        return self.slots + self.slots // AHEAD - len(self.held[split])


class EnginePool:
    """Every seat, by its actor's name."""

    def __init__(self, *, keeps: bool = True) -> None:
        """`keeps` says whether an engine keeps a version that is pinned beside later ones."""
        self._keeps = keeps
        self._engine_pool: dict[str, EngineHandle] = {}
        self._serving: dict[
            Service, dict[int, dict[str, EngineHandle]]
        ] = {}  # by room, and by name; nothing in it is empty
        self._versions: Counter[int | None] = Counter()  # none of it is zero
        self.held: Counter[Split] = Counter()
        """Rollouts that are with engines."""

    def add(self, engine_handle: EngineHandle) -> None:
        """A new seat, without weights; it takes the place of one of its name."""
        self.remove(engine_handle.name)
        self._engine_pool[engine_handle.name] = engine_handle
        self._count(engine_handle, 1)

    def remove(self, name: str) -> EngineHandle | None:
        if (engine_handle := self._engine_pool.pop(name, None)) is not None:
            self._leave(engine_handle)
            self._count(engine_handle, -1)
            self.held.subtract({split: len(held) for split, held in engine_handle.held.items()})
        return engine_handle

    def get(self, name: str) -> EngineHandle | None:
        return self._engine_pool.get(name)

    def __iter__(self) -> Iterator[EngineHandle]:
        return iter(list(self._engine_pool.values()))

    # ------------------------------------------------------------------------------------ services

    def serve(self, name: str, version: int, *, pin: bool) -> None:
        """The named seat decodes with `version`, and with `pin` keeps it."""
        if (engine_handle := self._engine_pool.get(name)) is not None:
            self._leave(engine_handle)
            self._count(engine_handle, -1)
            engine_handle.version = version
            self._count(engine_handle, 1)
            if not self._keeps:
                engine_handle.kept.clear()
            if pin:
                engine_handle.kept.add(version)
            self._enter(engine_handle)

    def unpin(self, version: int) -> list[EngineHandle]:
        """Nobody keeps `version` any more; those that did."""
        engine_pool = [
            engine_handle
            for engine_pool in self._serving.get(("evaluation", version), {}).values()
            for engine_handle in engine_pool.values()
        ]
        for engine_handle in engine_pool:
            self._leave(engine_handle)
            engine_handle.kept.remove(version)
            self._enter(engine_handle)
        return engine_pool

    def serves(self, split: Split, version: int | None) -> bool:
        """Whether any seat gives this service."""
        return (split, version) in self._serving

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
        return self._versions[version] < len(self._engine_pool)

    # ---------------------------------------------------------------------------------------- room

    def room(self, split: Split, version: int | None) -> int:
        """How many more rollouts those that give this service may be given."""
        return sum(
            room * len(engine_pool)
            for room, engine_pool in self._serving.get((split, version), {}).items()
        )

    def roomiest(self, split: Split, version: int | None, but: str = "") -> EngineHandle:
        """A seat with the most room among those that give this service, of which there must be one;
        the first to have had that much. The seat named `but` is taken only where no other has room.
        """
        rooms = self._serving[split, version]
        for room in sorted(rooms, reverse=True) if but else ():
            if (
                room > 0
                and (
                    other := next(
                        (
                            engine_handle
                            for name, engine_handle in rooms[room].items()
                            if name != but
                        ),
                        None,
                    )
                )
                is not None
            ):
                return other
        return next(iter(rooms[max(rooms)].values()))

    def hold(self, engine_handle: EngineHandle, rollout: int, split: Split) -> None:
        """The seat is given this rollout."""
        self._leave(engine_handle)
        engine_handle.held[split].add(rollout)
        self.held[split] += 1
        self._enter(engine_handle)

    def release(self, name: str, rollout: int, split: Split) -> None:
        """The named seat holds this rollout no more."""
        engine_handle = self._engine_pool.get(name)
        if engine_handle is not None and rollout in engine_handle.held[split]:
            self._leave(engine_handle)
            engine_handle.held[split].remove(rollout)
            self.held[split] -= 1
            self._enter(engine_handle)

    # --------------------------------------------------------------------------------------- index

    def _count(self, engine_handle: EngineHandle, sign: int) -> None:
        self._versions[engine_handle.version] += sign
        if not self._versions[engine_handle.version]:
            del self._versions[engine_handle.version]

    def _enter(self, engine_handle: EngineHandle) -> None:
        for service in engine_handle.services:
            self._serving.setdefault(service, {}).setdefault(engine_handle.room(service[0]), {})[
                engine_handle.name
            ] = engine_handle

    def _leave(self, engine_handle: EngineHandle) -> None:
        for service in engine_handle.services:
            rooms, room = self._serving[service], engine_handle.room(service[0])
            del rooms[room][engine_handle.name]
            if not rooms[room]:
                del rooms[room]
            if not rooms:
                del self._serving[service]
