"""Takes rollouts back from engines.

Invariant: a rollout that is with no engine any more waits again with its tokens, or is complete, or
is buried under a name.

    park     every engine is asked to give back its rollouts of a split; they come as chunks that
             end with `interrupted` (chunks.py)
    drain    one engine is asked to give back all of its rollouts
    expire   a lease ran out: the rollout waits for another engine
    lose     an engine is gone: its rollouts go on elsewhere, from their last streamed token

A lease that brought no token is a failed attempt, unless the engine had no slot for the rollout
yet. After `rollout.attempts` failures the rollout is buried. A training rollout that was taken back
more than `rollout.max_resumes` times is buried as `max_resumes`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping

from asyncrl.actors.coordinator.engine_pool import SPLITS, EngineHandle, EnginePool
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.config import Config
from asyncrl.experience.call import Call, RolloutStatus
from asyncrl.experience.episode import AgentCall
from asyncrl.experience.events import Answered, Buried, Dropped, Requeued, Sealed
from asyncrl.messages import Finish, Interrupt, Split

logger = logging.getLogger(__name__)


class Reclaiming:
    """Ends leases before their rollouts are complete."""

    def __init__(
        self, store: EventStore, engines: EnginePool, leases: LeaseTable, config: Config
    ) -> None:
        self._store = store
        self._engines = engines
        self._leases = leases
        self._attempts = config.rollout.attempts
        self._max_resumes = config.rollout.max_resumes
        self._late_engines: dict[int, str] = {}
        # held by engines, and asked to be given back
        self._parking: dict[Split, set[int]] = {"train": set(), "evaluation": set()}

    # ----------------------------------------------------------------------------- all of an engine

    def park(self, split: Split) -> None:
        """Ask every engine, once, to give back the rollouts of `split` that it holds."""
        parking = self._parking[split]
        if len(parking) == self._engines.held[split]:
            return
        for engine in self._engines:
            self._ask(engine, split)

    def drain(self, engine: EngineHandle) -> None:
        """Ask one engine, once, to give back every rollout that it holds."""
        for split in SPLITS:
            self._ask(engine, split)

    def _ask(self, engine: EngineHandle, split: Split) -> None:
        """Ask an engine for its rollouts of `split`, but for those that it was asked for before."""
        parking = self._parking[split]
        if asked := sorted(engine.held[split] - parking):
            parking.update(asked)
            engine.peer.send(Interrupt(asked))

    def expire(self, now: float, streamed: Mapping[str, float]) -> list[str]:
        """End the leases that have run out by `now`. Their engines are told; tokens that they still
        send are late.

        `streamed` says when each engine streamed last, in seconds on the run's clock. Returns the
        engines that streamed nothing since they got one of these rollouts: they must be replaced.
        """
        expired: dict[str, list[Call]] = {}
        for id in self._leases.over(now):
            call = self._store.experience.calls[id]
            expired.setdefault(call.holder, []).append(call)
        silent = []
        for name, calls in expired.items():
            engine = self._engines.get(name)
            assert engine is not None, "the rollouts of an engine were taken back when it was lost"
            last_lease = max(self._leases.of(call.id).since for call in calls)
            if streamed.get(name, -math.inf) <= last_lease:
                silent.append(name)
            queued = self._queued(engine)
            for call in calls:
                lease = self._leases.of(call.id)
                if call.tokens > lease.tokens:
                    self._leases.times.took(now - lease.since)
                self.fail(call, "lease_expired", queued)
                if call.status is RolloutStatus.WAITING:
                    self._late_engines[call.id] = name
            engine.peer.send(Interrupt([call.id for call in calls]))
        return silent

    def lose(self, engine: EngineHandle) -> None:
        """An engine is gone, and is in the pool no more: its rollouts go on elsewhere, each from
        its last streamed token."""
        queued = self._queued(engine)
        for held in engine.held.values():
            for id in sorted(held):
                self.fail(self._store.experience.calls[id], "actor_lost", queued)

    def queued(self, name: str) -> set[int]:
        """The rollouts that the named engine has not begun; none if there is no such engine."""
        engine = self._engines.get(name)
        return set() if engine is None else self._queued(engine)

    def _queued(self, engine: EngineHandle) -> set[int]:
        """The rollouts for which an engine has no slot yet: it begins leases in the order in which
        they were given."""
        held = (id for ids in engine.held.values() for id in ids)
        return set(sorted(held, key=lambda id: self._leases.of(id).number)[engine.slots :])

    # --------------------------------------------------------------------------------- one rollout

    def interrupted(self, call: Call, queued: Collection[int]) -> None:
        """An engine gave a rollout back. If it was not asked to, that is a failed attempt, but for
        the rollouts that were `queued` there."""
        if call.id in self._parking[self._split(call)]:
            self.take_back(call, "interrupted")
        else:
            self.fail(call, "interrupted", queued)

    def fail(self, call: Call, reason: str, queued: Collection[int]) -> None:
        """End a lease that went wrong. It is no failed attempt if it brought a token: then the
        response is longer now, and so it comes to an end. Nor is it one if the rollout was only
        `queued` at its engine."""
        if call.tokens > self._leases.of(call.id).tokens or call.id in queued:
            self.take_back(call, reason)
            return
        if call.failures + 1 >= self._attempts:
            self.release(call)
            group = self._store.experience.groups[call.group]
            logger.warning(
                "rollout %d (%s prompt %d, %d tokens) is dropped after %d attempts without a "
                "token; the last one ended by %s",
                call.id,
                group.split,
                group.prompt_index,
                call.tokens,
                self._attempts,
                reason,
            )
            self._store.record(Buried(call.id, reason))
        else:
            self.take_back(call, reason, failed=True)

    def take_back(self, call: Call, reason: str, *, failed: bool = False) -> None:
        """End a lease: the rollout waits for another one, or is complete, or has been resumed too
        often."""
        self.release(call)
        self._store.record(taken_back(call, reason, failed=failed))
        if call.status is RolloutStatus.WAITING:
            self.bury_if_resumed_too_often(call)

    def bury_if_resumed_too_often(self, call: Call) -> bool:
        """Bury a waiting training rollout that was taken back more than `max_resumes` times.
        Returns True if it did. Each lease of a waiting rollout was taken back, so the number of its
        leases is counted."""
        too_often = self._split(call) == "train" and 0 < self._max_resumes < call.attempt
        if too_often:
            self.give_up(call, "max_resumes")
        return too_often

    def give_up(self, call: Call, reason: str) -> None:
        """Bury a rollout under `reason`. An engine that has it is told to stop it."""
        self.stop(call)
        self.bury(call, reason)

    def bury(self, call: Call, reason: str) -> None:
        """Bury a rollout under `reason`. No engine has it, or the one that had it has ended it."""
        if call.holder:
            self.release(call)
        self._late_engines.pop(call.id, None)
        self._store.record(Buried(call.id, reason))

    def let_go(self, call: Call) -> None:
        """End the lease of a rollout, if it has one: its engine is told to stop it, and tokens that
        it still sends are late."""
        self.stop(call)
        if call.holder:
            self.release(call)
        self._late_engines.pop(call.id, None)

    def late_engine(self, call: Call) -> str:
        """Take the name of the engine where the last lease of a waiting rollout ran out; empty if
        there is none, or it was taken before."""
        return self._late_engines.pop(call.id, "")

    def stop(self, call: Call) -> None:
        """Tell the engine that has a rollout to stop it."""
        if (engine := self._engines.get(call.holder)) is not None:
            engine.peer.send(Interrupt([call.id]))

    def abandon_evaluation(self) -> None:
        """Drop every held-out group, and have engines stop what they have of it."""
        experience = self._store.experience
        for group in [g for g in experience.groups.values() if g.split == "evaluation"]:
            for call in [c for c in experience.calls.values() if c.group == group.id]:
                self.stop(call)
                self.release(call)
            self._store.record(Dropped(group.id, "evaluation"))

    def release(self, call: Call) -> None:
        """The rollout is with no engine any more."""
        split = self._split(call)
        self._engines.release(call.holder, call.id, split)
        self._leases.back(call.id)
        self._parking[split].discard(call.id)

    def _split(self, call: Call) -> Split:
        return self._store.experience.groups[call.group].split


def taken_back(call: Call, reason: str, *, failed: bool = False) -> Requeued | Sealed | Answered:
    """The event by which a leased call is taken back: it waits for another lease, or is complete
    because its budget of tokens is used up."""
    if call.remaining:
        return Requeued(call.id, call.attempt, reason, failed)
    return completed(call, "length")


def completed(call: Call, finish: Finish) -> Sealed | Answered:
    """The event by which a leased call is complete. A rollout of one turn is over with it."""
    if isinstance(call, AgentCall):
        return Answered(call.id, call.attempt, finish)
    return Sealed(call.id, call.attempt, finish)
