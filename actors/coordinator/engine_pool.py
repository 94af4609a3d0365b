"""The engines that are connected, as the coordinator knows them.

Invariant: a rollout is held by at most one engine. An engine holds at most the rollouts that it
decodes now and next, for training and evaluation each. Engines are indexed by room for each
service.

Only `EnginePool` changes an `EngineHandle`. So a question that comes with every message (which
engine has room, which one is behind) costs the same with any number of engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from asyncrl.actors.coordinator.peers import Peer
from asyncrl.messages import Split

AHEAD = 4
"""An engine gets 1/AHEAD more rollouts than it has slots, so that a slot is refilled without a
round trip."""

SPLITS: tuple[Split, Split] = ("train", "evaluation")
Service = tuple[Split, int | None]
"""The work that an engine can do: `(split, None)` samples with the current weights; `(split,
version)` with those of one version."""


@dataclass(eq=False)
class EngineHandle:
    """One engine: the versions that it serves, and the rollouts that it holds."""

    peer: Peer
    slots: int
    version: int | None = None
    """The version that it decodes with; None before it has weights."""
    committing: bool = False
    """True from the order to serve another version until the engine confirms it."""
    draining: bool = False
    """True once its process was told to end: it gets no more work."""
    closed: bool = False
    """True while the trainer uses its lent devices: it gets no work."""
    kept: set[int] = field(default_factory=set)
    """Versions that it serves until it is told to drop them."""
    held: dict[Split, set[int]] = field(
        default_factory=lambda: {"train": set(), "evaluation": set()}
    )
    """Rollouts that are with it, by split."""

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def services(self) -> list[Service]:
        """The services that it offers; none before it has weights, nor while it is draining or
        closed.

        While it is committing, it may still sample under the version before, so it gives no service
        with current weights.
        """
        if self.version is None or self.draining or self.closed:
            return []
        current: list[Service] = [] if self.committing else [(split, None) for split in SPLITS]
        return current + [(split, version) for version in self.kept for split in SPLITS]

    def room(self, split: Split) -> int:
        """Count the rollouts of `split` that it may still get."""
        return self.slots + self.slots // AHEAD - len(self.held[split])


class EnginePool:
    """Every connected engine, by its actor's name."""

    def __init__(self, *, keeps: bool = True) -> None:
        """`keeps` is True if an engine keeps a pinned version beside later ones."""
        self.keeps = keeps
        self._engines: dict[str, EngineHandle] = {}
        # by service, by room, by name; no inner dictionary is empty
        self._serving: dict[Service, dict[int, dict[str, EngineHandle]]] = {}
        self._versions: Counter[int | None] = Counter()  # no count is zero
        self._draining: dict[str, EngineHandle] = {}
        self.held: Counter[Split] = Counter()
        """Rollouts that are with engines."""
        self.slots = 0
        """Rollouts that engines decode at a time; draining or closed ones count as none."""

    def add(self, engine: EngineHandle) -> None:
        """Add a new engine without weights. It replaces one of its name."""
        self.remove(engine.name)
        self._engines[engine.name] = engine
        self._count(engine, 1)
        self.slots += _slots(engine)

    def remove(self, name: str) -> EngineHandle | None:
        """Remove the named engine; None if there is none."""
        if (engine := self._engines.pop(name, None)) is not None:
            self._leave(engine)
            self._count(engine, -1)
            self._draining.pop(name, None)
            self.slots -= _slots(engine)
            self.held.subtract({split: len(held) for split, held in engine.held.items()})
        return engine

    def drain(self, engine: EngineHandle) -> None:
        """Give the engine no more work. Does nothing if it is already draining."""
        if not engine.draining:
            self._leave(engine)
            self.slots -= _slots(engine)
            engine.draining = True
            self._draining[engine.name] = engine

    def close(self, engine: EngineHandle) -> None:
        """Give the engine no work until it is opened. It stays a member of publications."""
        self._leave(engine)
        self.slots -= _slots(engine)
        engine.closed = True

    def open(self, engine: EngineHandle) -> None:
        """Give the engine work again."""
        engine.closed = False
        self.slots += _slots(engine)
        self._enter(engine)

    @property
    def drained(self) -> list[EngineHandle]:
        """The draining engines that hold no more rollouts."""
        return [e for e in self._draining.values() if not any(e.held.values())]

    def get(self, name: str) -> EngineHandle | None:
        return self._engines.get(name)

    def __len__(self) -> int:
        return len(self._engines)

    def __iter__(self) -> Iterator[EngineHandle]:
        return iter(list(self._engines.values()))

    # ------------------------------------------------------------------------------------ services

    def commit(self, name: str) -> None:
        """Note that the named engine is told to serve another version."""
        if (engine := self._engines.get(name)) is not None:
            self._leave(engine)
            engine.committing = True
            self._enter(engine)

    def serve(self, name: str, version: int, *, pin: bool) -> None:
        """Note that the named engine decodes with `version`, and with `pin` keeps it."""
        if (engine := self._engines.get(name)) is not None:
            self._leave(engine)
            self._count(engine, -1)
            engine.version, engine.committing = version, False
            self._count(engine, 1)
            if not self.keeps:
                engine.kept.clear()
            if pin:
                engine.kept.add(version)
            self._enter(engine)

    def tear(self, name: str) -> None:
        """Mark the named engine as paused, with torn weights."""
        if (engine := self._engines.get(name)) is not None:
            self._leave(engine)
            self._count(engine, -1)
            engine.version, engine.committing = None, False
            self._count(engine, 1)
            self._enter(engine)

    def unpin(self, version: int) -> list[EngineHandle]:
        """Unpin `version` from all engines. Returns those that kept it."""
        keeping = [engine for engine in self if version in engine.kept]  # also of no version now
        for engine in keeping:
            self._leave(engine)
            engine.kept.remove(version)
            self._enter(engine)
        return keeping

    def serves(self, split: Split, version: int | None) -> bool:
        """True if any engine gives this service."""
        return (split, version) in self._serving

    @property
    def kept(self) -> set[int]:
        """The versions that any engine keeps which has weights and is not draining."""
        return {
            version
            for engine in self._engines.values()
            if engine.version is not None and not engine.draining
            for version in engine.kept
        }

    @property
    def current(self) -> set[int]:
        """The versions that engines decode with."""
        return {version for version in self._versions if version is not None}

    def behind(self, version: int) -> list[EngineHandle]:
        """The engines that do not decode with `version`."""
        if self._versions[version] == len(self._engines):
            return []
        return [engine for engine in self if engine.version != version]

    # ---------------------------------------------------------------------------------------- room

    def room(self, split: Split, version: int | None) -> int:
        """Count the rollouts that engines with this service may still get."""
        return sum(
            room * len(engines) for room, engines in self._serving.get((split, version), {}).items()
        )

    def roomiest(
        self,
        split: Split,
        version: int | None,
        but: str = "",
        among: Collection[str] = (),
    ) -> EngineHandle:
        """Find the engine with the most room among those that offer this service (at least one
        must). Among equals it is the one that has had that room for longest. The engine named `but`
        is chosen only if no other has room, and one that is not `among` those named only if none of
        them has."""
        by_room = self._serving[split, version]
        named = [
            engine
            for name in among
            if name != but
            and (engine := self._engines.get(name)) is not None
            and (split, version) in engine.services
            and engine.room(split) > 0
        ]
        if named:
            return max(named, key=lambda engine: engine.room(split))
        for room in sorted(by_room, reverse=True) if but else ():
            others = (engine for name, engine in by_room[room].items() if name != but)
            if room > 0 and (other := next(others, None)) is not None:
                return other
        return next(iter(by_room[max(by_room)].values()))

    def hold(self, engine: EngineHandle, rollout: int, split: Split) -> None:
        """Assign this rollout to the engine."""
        self._leave(engine)
        engine.held[split].add(rollout)
        self.held[split] += 1
        self._enter(engine)

    def release(self, name: str, rollout: int, split: Split) -> None:
        """Release this rollout from the named engine."""
        engine = self._engines.get(name)
        if engine is not None and rollout in engine.held[split]:
            self._leave(engine)
            engine.held[split].remove(rollout)
            self.held[split] -= 1
            self._enter(engine)

    # --------------------------------------------------------------------------------------- index

    def _count(self, engine: EngineHandle, sign: int) -> None:
        self._versions[engine.version] += sign
        if not self._versions[engine.version]:
            del self._versions[engine.version]

    def _enter(self, engine: EngineHandle) -> None:
        for service in engine.services:
            by_room = self._serving.setdefault(service, {})
            by_room.setdefault(engine.room(service[0]), {})[engine.name] = engine

    def _leave(self, engine: EngineHandle) -> None:
        for service in engine.services:
            by_room, room = self._serving[service], engine.room(service[0])
            del by_room[room][engine.name]
            if not by_room[room]:
                del by_room[room]
            if not by_room:
                del self._serving[service]


def _slots(engine: EngineHandle) -> int:
    """Rollouts that an engine decodes at a time; 0 if it begins none."""
    return 0 if engine.draining or engine.closed else engine.slots
