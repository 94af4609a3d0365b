"""The games of one run of several that play together, as its events show them."""

from __future__ import annotations

from typing import NamedTuple

import trio

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.experience import events as e
from asyncrl.messages.game_messages import OUTCOME
from asyncrl.simulation.fake_world import FakeWorld
from asyncrl.simulation.observer import WorldObserver

HOST, GUEST = POLICIES = "host", "guest"
MORE = (*POLICIES, "guest-2", "guest-3")
FIRST = {policy: 11 + place for place, policy in enumerate(MORE)}
"""The first token of each context of a policy."""


class _GameEnd(NamedTuple):
    """The end of a game in a run: sealed or buried, by the event of this number."""

    sealed: bool
    number: int


class GameSide(WorldObserver):
    """The games of one run, by the events that it did not lose."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.policy = policy
        self.world: FakeWorld
        self.others = list[GameSide]()
        self.begun_at, self.ended_at = dict[int, float](), dict[int, float]()
        self.events = list[e.AnyEvent]()
        self.replayed = 0
        self.weights = dict[int, int]()
        """Those of each version, as its learner made it last."""
        self._read()

    def _read(self) -> None:
        self.keys, self.done = dict[int, int](), dict[int, _GameEnd]()
        self.outcomes = dict[int, int]()
        self.begun = set[int]()
        for number, event in enumerate(self.events, 1):
            self._note(number, event)
        for known, at in ((self.begun, self.begun_at), (self.done.keys(), self.ended_at)):
            for key in at.keys() - known:
                del at[key]

    def _note(self, number: int, event: e.AnyEvent) -> None:
        match event:
            case e.Admitted():
                self.keys |= {event.first + n: event.key + n for n in range(event.size)}
            case e.Begun() if event.rollout in self.keys:
                self.begun.add(self.keys[event.rollout])
            case e.Sealed() if event.rollout in self.keys:
                self.done[self.keys[event.rollout]] = _GameEnd(True, number)
            case e.Buried() if event.rollout in self.keys:
                self.done[self.keys[event.rollout]] = _GameEnd(False, number)
            case e.Noted() if event.name.startswith(OUTCOME):
                self.outcomes.setdefault(self.keys[event.rollout], number)

    @property
    def durable(self) -> int:
        return self.world.sim_disk.last

    def on_begin(
        self, store: EventStore, version: int, cursor: int, last: int, evaluated: object = ()
    ) -> None:
        del self.events[last:]
        self._read()

    def on_step(self, version: int, weights: int) -> None:
        self.weights[version] = weights

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        del self.events[number - 1 :]
        self.events.append(event)
        self._note(number, event)
        match event:
            case e.Begun() if event.rollout in self.keys:
                self.begun_at.setdefault(self.keys[event.rollout], trio.current_time())
            case e.Sealed() | e.Buried() if event.rollout in self.keys:
                self.ended_at[self.keys[event.rollout]] = trio.current_time()
                self._look(self.keys[event.rollout], isinstance(event, e.Sealed))
            case e.Called() if event.after is None and event.given:
                first = int.from_bytes(event.given[:4], "little")
                self.hold(
                    "each samples its own", first == FIRST[self.policy], "a context has {}", first
                )

    def _look(self, key: int, sealed: bool) -> None:
        for other in self.others:
            theirs = other.done.get(key)
            if not sealed:
                kept = theirs is None or not theirs.sealed
                self.hold("pairs", kept, "{} gives up game {}, which has ended", self.policy, key)
                continue
            self.hold(
                "pairs", theirs is None or theirs.sealed, "game {} was given up by {}", key, other
            )
            if self.policy == HOST:
                ended = theirs is not None and theirs.number <= other.durable
                self.hold("order", ended, "game {} ends, and {} has {}", key, other, theirs)
            elif other.policy == HOST:
                number = other.outcomes.get(key)
                kept = number is not None and number <= other.durable
                self.hold("order", kept, "game {} ends, and the host's disk has no outcome", key)

    def __str__(self) -> str:
        return f"the {self.policy}"
