"""Takes rollouts back from engines.

Invariant: a rollout that is with no engine any more waits again with its tokens, or is complete, or
is buried under a name.

    park     every engine is asked to give back its rollouts of a split; they come as chunks that
             end with `interrupted` (chunks.py)
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

from actors.coordinator.engine_pool import EngineHandle, EnginePool
from actors.coordinator.event_store import EventStore
from actors.coordinator.leases import LeaseTable
from asyncrl.config import Config
from asyncrl.experience.events import Buried, Requeued, Sealed
from asyncrl.experience.rollout import Rollout, RolloutStatus
from asyncrl.ipc.messages import Interrupt, Split

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
            if asked := sorted(engine.held[split] - parking):
                parking.update(asked)
                engine.peer.send(Interrupt(asked))

    def expire(self, now: float, streamed: Mapping[str, float]) -> list[str]:
        """End the leases that have run out by `now`. Their engines are told; tokens that they still
        send are late.

        `streamed` says when each engine streamed last, in seconds on trio's clock. Returns the
        engines that streamed nothing since they were given one of these rollouts: they are to be
        replaced.
        """
        expired: dict[str, list[Rollout]] = {}
        for id in self._leases.over(now):
            rollout = self._store.experience.rollouts[id]
            expired.setdefault(rollout.holder, []).append(rollout)
        silent = []
        for name, rollouts in expired.items():
            engine = self._engines.get(name)
            assert engine is not None, "the rollouts of an engine were taken back when it was lost"
            last_lease = max(self._leases.of(rollout.id).since for rollout in rollouts)
            if streamed.get(name, -math.inf) <= last_lease:
                silent.append(name)
            queued = self._queued(engine)
            for rollout in rollouts:
                lease = self._leases.of(rollout.id)
                if rollout.tokens > lease.tokens:
                    self._leases.times.took(now - lease.since)
                self.fail(rollout, "lease_expired", queued)
                if rollout.status is RolloutStatus.WAITING:
                    self._late_engines[rollout.id] = name
            engine.peer.send(Interrupt([rollout.id for rollout in rollouts]))
        return silent

    def lose(self, engine: EngineHandle) -> None:
        """An engine is gone, and is in the pool no more: its rollouts go on elsewhere, each from
        its last streamed token."""
        queued = self._queued(engine)
        for held in engine.held.values():
            for id in sorted(held):
                self.fail(self._store.experience.rollouts[id], "actor_lost", queued)

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

    def interrupted(self, rollout: Rollout, queued: Collection[int]) -> None:
        """An engine gave a rollout back. If it was not asked to, that is a failed attempt, but for
        the rollouts that were `queued` there."""
        if rollout.id in self._parking[self._split(rollout)]:
            self.take_back(rollout, "interrupted")
        else:
            self.fail(rollout, "interrupted", queued)

    def fail(self, rollout: Rollout, reason: str, queued: Collection[int]) -> None:
        """End a lease that went wrong. It is no failed attempt if it brought a token: then the
        response is longer now, and so it comes to an end. Nor is it one if the rollout was only
        `queued` at its engine."""
        if rollout.tokens > self._leases.of(rollout.id).tokens or rollout.id in queued:
            self.take_back(rollout, reason)
            return
        if rollout.failures + 1 >= self._attempts:
            self.release(rollout)
            group = self._store.experience.groups[rollout.group]
            logger.warning(
                "rollout %d (%s prompt %d, %d tokens) is given up after %d attempts that brought "
                "no token; the last one ended by %s",
                rollout.id,
                group.split,
                group.prompt_index,
                rollout.tokens,
                self._attempts,
                reason,
            )
            self._store.record(Buried(rollout.id, reason))
        else:
            self.take_back(rollout, reason, failed=True)

    def take_back(self, rollout: Rollout, reason: str, *, failed: bool = False) -> None:
        """End a lease: the rollout waits for another one, or is complete, or has been resumed too
        often."""
        self.release(rollout)
        self._store.record(taken_back(rollout, reason, failed=failed))
        if rollout.status is RolloutStatus.WAITING:
            self.bury_if_resumed_too_often(rollout)

    def bury_if_resumed_too_often(self, rollout: Rollout) -> bool:
        """Bury a waiting training rollout that was taken back more than `max_resumes` times.
        Returns True if it did. Each lease of a waiting rollout was taken back, so the number of its
        leases is counted."""
        too_often = self._split(rollout) == "train" and 0 < self._max_resumes < rollout.attempt
        if too_often:
            self.give_up(rollout, "max_resumes")
        return too_often

    def give_up(self, rollout: Rollout, reason: str) -> None:
        """Bury a rollout under `reason`. An engine that has it is told to stop it."""
        self.stop(rollout)
        if rollout.holder:
            self.release(rollout)
        self._late_engines.pop(rollout.id, None)
        self._store.record(Buried(rollout.id, reason))

    def late_engine(self, rollout: Rollout) -> str:
        """Take the name of the engine where the last lease of a waiting rollout ran out; empty if
        there is none, or it was taken before."""
        return self._late_engines.pop(rollout.id, "")

    def stop(self, rollout: Rollout) -> None:
        """Tell the engine that has a rollout to stop it."""
        if (engine := self._engines.get(rollout.holder)) is not None:
            engine.peer.send(Interrupt([rollout.id]))

    def release(self, rollout: Rollout) -> None:
        """The rollout is with no engine any more."""
        split = self._split(rollout)
        self._engines.release(rollout.holder, rollout.id, split)
        self._leases.back(rollout.id)
        self._parking[split].discard(rollout.id)

    def _split(self, rollout: Rollout) -> Split:
        return self._store.experience.groups[rollout.group].split


def taken_back(rollout: Rollout, reason: str, *, failed: bool = False) -> Requeued | Sealed:
    """The event by which a leased rollout is taken back: it waits for another lease, or is complete
    because its budget of tokens is used up."""
    if rollout.remaining:
        return Requeued(rollout.id, rollout.attempt, reason, failed)
    return Sealed(rollout.id, rollout.attempt, "length")
