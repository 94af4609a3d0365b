"""Leases waiting rollouts to engines.

Invariant: an engine gets a rollout only if it has room for it and serves a version that the rollout
needs: the pinned one, or any from the committed one on.

Resumed rollouts come first, then new ones. The engine with the most room is taken, if possible one
that the prompt prefers (`preferences.py`). A group stays together on one engine as far as there is
room, so that its prompt is read once. A call of an agent that continues another one goes to the
same engine, if a slot is free there: an engine that caches prefixes has most of its context.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from asyncrl.actors.coordinator.engine_pool import EngineHandle, EnginePool
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.pinning import Pinning
from asyncrl.actors.coordinator.preferences import Preferences, preferred_first
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.actors.coordinator.sent_images import SentImages
from asyncrl.config import Config
from asyncrl.experience.call import Call, RolloutStatus
from asyncrl.experience.episode import AgentCall
from asyncrl.experience.events import Leased
from asyncrl.experience.group import Group
from asyncrl.experience.image_marks import numbered_alone
from asyncrl.messages import Lease, Leases, Split
from asyncrl.runtime.processes.standstill import RunClock


class Placement:
    """Finds an engine for each waiting rollout."""

    def __init__(
        self,
        store: EventStore,
        engines: EnginePool,
        leases: LeaseTable,
        reclaiming: Reclaiming,
        pinning: Pinning,
        config: Config,
        clock: RunClock,
        label: Callable[[Split, int], str],
        images: SentImages | None = None,
    ) -> None:
        """`label(split, prompt_index)` names a prompt's task. `images` brings them to engines that
        are on other machines."""
        self._store = store
        self._clock = clock
        self._engines = engines
        self._leases = leases
        self._reclaiming = reclaiming
        self._pinning = pinning
        self._config = config
        self.preferences = Preferences(engines, config, label)
        self._images = images
        self._last: dict[int, str] = {}  # the engine that had an agent's call last, by call

    def lease(self, split: Split, version: int | None = None) -> None:
        """Give waiting rollouts of `split` to the engines that have room. `version` is the one that
        an evaluation is pinned to; None for training.

        A rollout whose lease ran out goes to another engine than before, if there is one. An engine
        gets only one rollout at a time with a single attempt left. So a rollout that crashes every
        engine does not bury others with it: those beside it have failed less often.
        """
        assigned: dict[EngineHandle, list[tuple[Call, int | None]]] = {}
        for call, pinned, engine in self._placed(split, version):
            self._engines.hold(engine, call.id, split)
            assigned.setdefault(engine, []).append((call, pinned))
        for engine, calls in assigned.items():
            self._hand_over(engine, calls, split)
        live = self._store.experience.calls
        if len(self._last) > 2 * len(live):
            self._last = {call: name for call, name in self._last.items() if call in live}

    def _placed(
        self, split: Split, version: int | None
    ) -> Iterator[tuple[Call, int | None, EngineHandle]]:
        """The rollouts that can be placed: each with the version of its lease, and its engine. The
        caller must assign the rollout to the engine before it takes the next."""
        group, engine = -1, None
        for call in self._waiting(split, version):
            if self._reclaiming.bury_if_resumed_too_often(call):
                continue
            pinned = self._pinning.version_of(call) if split == "train" else version
            if self._pinning.own and split == "train" and not self._engines.room(split, pinned):
                self._pinning.bury_if_gone(call)
                continue
            if self._on_last_attempt(call):
                if (alone := self._engine_for_one(split, pinned)) is not None:
                    self._reclaiming.late_engine(call)
                    group, engine = -1, None  # the next one is placed again
                    yield call, pinned, alone
                continue
            late_engine = self._reclaiming.late_engine(call)
            if (before := self._engine_before(call, split, pinned, late_engine)) is not None:
                yield call, pinned, before
                continue
            if (
                engine is None
                or call.group != group
                or late_engine
                or not engine.room(split)
                or (split, pinned) not in engine.services
            ):
                group, engine = (
                    call.group,
                    self._engines.roomiest(split, pinned, late_engine, self._named(call)),
                )
            yield call, pinned, engine

    def _waiting(self, split: Split, version: int | None) -> list[Call]:
        """The rollouts to place: as many as there is room for, and last those whose prompts prefer
        engines without room. If each may need another version, all that wait."""
        experience = self._store.experience
        if self._pinning.own and split == "train":
            any_room = any(engine.room("train") > 0 for engine in self._engines)
            room = experience.statuses()[RolloutStatus.WAITING] if any_room else 0
        else:
            room = self._engines.room(split, version)
        if not self.preferences or room <= 0:
            return experience.to_lease(split, room)
        waiting = experience.to_lease(split, len(experience.calls))
        rooms = self.preferences.rooms(split, version)
        return preferred_first(waiting, room, rooms, self._tag_of)

    def _tag_of(self, call: Call) -> str:
        return self.preferences.tag_of(self._store.experience.groups[call.group])

    def _named(self, call: Call) -> Collection[str]:
        """The names of the engines that the call's prompt prefers; none if it prefers none."""
        return self.preferences.actors(self._tag_of(call)) if self.preferences else ()

    def _on_last_attempt(self, call: Call) -> bool:
        """True if it failed before, and the next failure is its last."""
        return 0 < call.failures == self._config.rollout.attempts - 1

    def _engine_for_one(self, split: Split, version: int | None) -> EngineHandle | None:
        """An engine with room that holds no rollout on its last attempt; None if there is none."""
        calls = self._store.experience.calls
        for engine in self._engines:
            free = (split, version) in engine.services and engine.room(split) > 0
            if free and not any(
                self._on_last_attempt(calls[id]) for held in engine.held.values() for id in held
            ):
                return engine
        return None

    def _engine_before(
        self, call: Call, split: Split, version: int | None, late: str
    ) -> EngineHandle | None:
        """The engine of the call that this call of an agent continues, if it has a free slot; None
        where there is none, or it was `late`."""
        if not isinstance(call, AgentCall) or call.after is None:
            return None
        name = self._last.get(call.after[0], "")
        engine = self._engines.get(name)
        if engine is None or name == late or (split, version) not in engine.services:
            return None
        return engine if sum(map(len, engine.held.values())) < engine.slots else None

    def _hand_over(
        self, engine: EngineHandle, calls: list[tuple[Call, int | None]], split: Split
    ) -> None:
        """Record the leases and send them, in one frame. Each rollout comes with its pinned
        version."""
        leases, ids = [], bytearray()
        for call, pinned in calls:
            context, images, key, temperature = self._asked(call)
            attempt = call.attempt + 1
            leases.append(
                Lease(
                    rollout=call.id,
                    attempt=attempt,
                    key=key,
                    split=split,
                    images=images,
                    prompt_tokens=len(context) // 4,
                    prefix_tokens=call.tokens,
                    max_new_tokens=call.remaining,
                    temperature=temperature,
                    version=pinned,
                )
            )
            ids += context
            ids += call.ids
            if isinstance(call, AgentCall):
                self._last[call.id] = engine.name
            self._store.record(Leased(call.id, engine.name, attempt))
            self.preferences.count(self._store.experience.groups[call.group], engine.name)
            self._leases.give(
                call.id, attempt, call.tokens, self._clock.now(), pinned, engine.version
            )
        if self._images is not None:
            self._images.send(engine.peer, (name for lease in leases for name in lease.images))
        engine.peer.send(Leases(leases), bytes(ids))

    def _asked(self, call: Call) -> tuple[bytes, tuple[str, ...], int, float]:
        """Context of a call (`int32` ids) with its images, the key of its draws, and its
        temperature."""
        experience = self._store.experience
        if isinstance(call, AgentCall):
            episode = experience.rollouts[call.rollout].episode
            assert episode is not None, "a sealed episode has no calls"
            context = episode.context(call)
            ids, images = numbered_alone(context, episode.images)
            return ids, images, call.key, call.temperature
        group = experience.groups[call.group]
        rollout = experience.rollouts[call.id]
        key = group.key + group.draw_of(rollout)
        return group.context(rollout), group.images, key, temperature_of(group, self._config)


def temperature_of(group: Group, config: Config) -> float:
    """The temperature at which a group is sampled; 0: greedily."""
    if group.split == "train":
        return config.rollout.temperature
    return config.evaluation.temperature if group.sampled else 0.0
