"""Decides the version under which a rollout is sampled, and the versions that engines keep.

Invariant: an engine keeps a version as long as an evaluation or an unfinished rollout needs it, and
drops it soon after.

    finish_on = mixed   a training rollout goes on under whatever version is current
    finish_on = own     a training rollout ends under the version that it began with: its lease
                        names that version, and engines keep it until nobody needs it

An evaluation's rollouts are sampled under the version that is evaluated, in either case.
"""

from __future__ import annotations

from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.config import Config
from asyncrl.experience.call import Call, RolloutStatus
from asyncrl.messages import Unpin


class Pinning:
    """The versions that rollouts need."""

    def __init__(
        self,
        store: EventStore,
        engines: EnginePool,
        leases: LeaseTable,
        reclaiming: Reclaiming,
        config: Config,
    ) -> None:
        self._store = store
        self._engines = engines
        self._leases = leases
        self._reclaiming = reclaiming
        self._max_lag = config.staleness.max_lag
        self.own = config.staleness.finish_on == "own"
        """True if a training rollout ends under the version that it began with."""

    def version_of(self, call: Call) -> int | None:
        """The version that a training rollout is pinned to: None if it may mix versions, else the
        one it began with, or the committed one if it has no token yet."""
        if not self.own:
            return None
        return call.spans[0].version if call.spans else self._store.experience.version

    def bury_if_gone(self, call: Call) -> None:
        """Bury a rollout whose version no engine has room for, if no engine will have that version
        again. A new engine gets the committed version or a later one."""
        version = self.version_of(call)
        if not self._engines.serves("train", version) and version != self._store.experience.version:
            self._reclaiming.give_up(call, "version_gone")

    def release(self, evaluated: int | None) -> None:
        """Unpin the versions that neither the evaluation of version `evaluated` nor any rollout
        needs. Call it when every engine serves the committed version, or when an evaluation is
        over.

        With `finish_on = own`, engines keep each version under which an unfinished rollout began.
        These are at most `max_lag + 1`, the current one among them. A rollout that began earlier
        can be trained in no step to come, unless `on_stale` allows it, so it is buried as
        `version_gone`. A rollout without a token is leased again. A commit and an evaluation may
        need one version more each.

        Example: `max_lag = 1`, version 5 is committed, and rollouts began under 3, 4 and 5. The
        first one is buried, and engines keep 4 and 5.
        """
        needed = {evaluated}
        if self.own:
            needed |= self._engines.current
            oldest = (self._store.experience.version or 0) - self._max_lag
            for call in self._unfinished():
                leased = bool(call.holder)
                version = self._leases.of(call.id).version if leased else self.version_of(call)
                if version is None or version >= oldest:
                    needed.add(version)
                elif call.tokens:
                    self._reclaiming.give_up(call, "version_gone")
                else:
                    self._reclaiming.stop(call)
                    self._reclaiming.take_back(call, "version_gone")
        for version in sorted(self._engines.kept - needed):
            for engine in self._engines.unpin(version):
                engine.peer.send(Unpin(version))

    def _unfinished(self) -> list[Call]:
        """The training rollouts that need more tokens."""
        experience = self._store.experience
        held = [
            experience.calls[id] for engine in self._engines for id in sorted(engine.held["train"])
        ]
        return held + experience.to_lease("train", experience.statuses()[RolloutStatus.WAITING])
