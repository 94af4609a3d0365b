"""Brings weights to engines: the shell around one publication at a time.

Invariant: the version `committed` is in the journal (`Published`), and no token of a group is of an
earlier version than the one that was committed when the group was admitted. Every engine that
decodes serves the version `served`, or a later one.

    Publishing.committed   set when the commit is decided; groups are admitted under it from then on
    Publishing.served      set to the same version when every engine has answered

Between the two, an engine that has not answered may still sample under the version before. So it is
given no rollout until it answers (`EnginePool.commit`). The proof in docs/lag.md rests on this.

A publication is due if an engine does not serve the trainer's version (a step was taken, or an
engine came), or if that version is to be pinned for evaluation. It goes to the engines that need
it: one that came late is caught up alone, and the others decode on. With `finish_on = own` every
version is pinned until nobody needs it. Where averages are evaluated (`evaluation.weights`), a
publication for evaluation carries two sets of weights, the version's own and its average: engines
decode with the first and keep the second, under the version's number, for the evaluation alone.
A publication that fails is tried again in a new epoch. One that failed when a direct transfer had
begun leaves engines that stand still, with weights of no version: they are as those without any.
FAILURES in a row end the run, but for those in which an engine was lost: that engine has a restart
budget of its own, and the next publication goes on without it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from asyncrl.actors.coordinator.decisions import Decision, EndRun, ReplaceActor, VersionServed
from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.config import Config
from asyncrl.config.published import publication_s
from asyncrl.experience.events import Published
from asyncrl.explain.run_status import PublicationStatus
from asyncrl.explain.summary import Publications
from asyncrl.messages import Commit, Committed, Joined, Prepared, Quiesced, Resend, Transferred
from asyncrl.runtime.processes.standstill import RunClock
from asyncrl.weightsync.membership import Membership
from asyncrl.weightsync.publication import Publication
from asyncrl.weightsync.publication_actions import (
    Action,
    Decided,
    Done,
    Failed,
    Fence,
    FenceTrainer,
    ToMember,
    ToTrainer,
)

FAILURES = 5
"""Publications that may fail in a row with every engine alive: then no engine is at fault, and a
retry will not help."""
RECENT = 32
"""Publications that are remembered one by one. A run may have any number."""

logger = logging.getLogger(__name__)


class Publishing:
    """The publications of a run."""

    def __init__(
        self, store: EventStore, engines: EnginePool, config: Config, clock: RunClock
    ) -> None:
        self._store = store
        self._engines = engines
        self._clock = clock
        self._deadline_s = publication_s(config)
        self._own = config.staleness.finish_on == "own"
        self._average = config.evaluation.weights == "ema"
        self._direct = config.publication.path == "direct"
        self._membership = Membership()
        self._trainer: tuple[Peer, str] | None = None
        self._current: Publication | None = None
        self._pin = False
        self._number = 0
        self._began = 0.0
        self._pauses: dict[int, float] = {}
        self._sent_bytes = 0  # of the publication under way, to each engine
        self._failures = 0
        self.committed: int | None = None
        """The last version whose publication was decided in this process; None before the first."""
        self.served: int | None = None
        """The last version that every engine served; None before the first publication is done."""
        self.total = Publications()  # all of them
        self.failed: list[str] = []  # the reasons of the last RECENT that were tried again
        # of the last RECENT: seconds from preparation to the last engine's answer
        self.seconds: list[float] = []
        # of the same: seconds that each engine's decoding was paused, by its index
        self.pauses: list[dict[int, float]] = []

    @property
    def waiting_for(self) -> str:
        """The actors that the publication under way waits for, in words; empty if there is none."""
        return self._current.waiting_for if self._current is not None else ""

    def under_way(self, now: float) -> PublicationStatus | None:
        """The publication that is under way; None if there is none."""
        if (current := self._current) is None:
            return None
        return PublicationStatus(
            number=current.number,
            version=current.version,
            phase=current.phase.value,
            waiting_for=current.waiting_for,
            seconds=now - self._began,
            left_s=max(0.0, (current.deadline or now) - now),
        )

    @property
    def busy(self) -> bool:
        """True while a publication is under way."""
        return self._current is not None

    # ---------------------------------------------------------------------------------- membership

    def trainer(self, peer: Peer, store: str) -> None:
        """The trainer is ready; engines meet it in its `store`."""
        self._trainer = peer, store

    def join(self, member: int) -> None:
        """An engine without weights is ready."""
        self._membership = self._membership.left(member).joined(member)

    def drain(self, member: int) -> None:
        """An engine takes part in the publication under way, and in no other."""
        self._membership = self._membership.left(member)

    def involves(self, member: int) -> bool:
        """True if an engine takes part in the publication under way."""
        return self._current is not None and member in self._current.live

    def lose(self, member: int, reason: str) -> list[Decision]:
        """An engine is gone, so there is nothing left to fence."""
        self._membership = self._membership.left(member)
        if self._current is None:
            return []
        actions = self._current.lost(member, reason, self._clock.now())
        return self._carry_out(
            [a for a in actions if not (isinstance(a, Fence) and a.member == member)]
        )

    # ------------------------------------------------------------------------------------- driving

    def pump(self, version: int, pin: bool) -> list[Decision]:
        """Start the publication that is due, if any. `version` is the trainer's. With `pin` it is
        to be evaluated."""
        if self._current is not None or self._trainer is None:
            return []
        receivers = self._membership if pin else self._receivers(version)
        if not receivers.members:
            return []
        self._number += 1
        self._began, self._pauses, self._pin = self._clock.now(), {}, pin
        self._current = Publication(
            self._number,
            version,
            receivers,
            store=self._trainer[1],
            deadline_s=self._deadline_s,
            pin=pin or self._own,
            average=pin and self._average,
            direct=self._direct,
        )
        return self._carry_out(self._current.begin(self._began))

    def _receivers(self, version: int) -> Membership:
        """The members that do not decode with `version`: all of them, or in an epoch of their own
        those that came late."""
        behind = {engine.peer.index for engine in self._engines.behind(version)}
        late = behind.intersection(self._membership.members)
        if not late:
            return Membership()
        if len(late) == len(self._membership.members):
            return self._membership
        # A process group cannot change: the next publication to all needs another epoch, too.
        receivers = self._membership.only(late)
        self._membership = Membership(receivers.epoch + 1, self._membership.members)
        return receivers

    def late(self, now: float) -> list[Decision]:
        """Give up what the publication under way has waited for too long, by the run's clock."""
        return [] if self._current is None else self._carry_out(self._current.late(now))

    def on_joined(self, member: int | None, message: Joined) -> list[Decision]:
        """An engine, or with None the trainer, is in the group."""
        if self._current is None:
            return []
        return self._carry_out(self._current.joined(member, message, self._clock.now()))

    def on_quiesced(self, member: int, message: Quiesced) -> list[Decision]:
        """Note that an engine is paused."""
        if self._current is None:
            return []
        return self._carry_out(self._current.quiesced(member, message, self._clock.now()))

    def on_transferred(self, message: Transferred) -> list[Decision]:
        """The trainer has sent the weights, or failed to."""
        if self._current is None:
            return []
        self._sent_bytes = message.sent_bytes
        return self._carry_out(self._current.transferred(message, self._clock.now()))

    def on_prepared(self, member: int, message: Prepared) -> list[Decision]:
        """An engine has the weights, or failed to receive them."""
        if self._current is None:
            return []
        return self._carry_out(self._current.prepared(member, message, self._clock.now()))

    def on_committed(self, member: int, name: str, message: Committed) -> list[Decision]:
        """The engine `name` serves the version now, if it was told to: one that came in the place
        of a member has no weights, whatever it repeats."""
        current = self._current
        if current is None or message.publication != self._number or not current.commits(member):
            return []
        if message.version == current.version:
            self._engines.serve(name, message.version, pin=self._pin or self._own)
            self._pauses[member] = message.pause_seconds
        return self._carry_out(current.committed(member, message, self._clock.now()))

    def _carry_out(self, actions: Sequence[Action]) -> list[Decision]:
        """Carry out what the publication asks for. Returns what is left for the loop."""
        return [decision for action in actions for decision in self._do(action)]

    def _do(self, action: Action) -> list[Decision]:
        match action:
            case ToTrainer(message):
                assert self._trainer is not None
                self._trainer[0].send(message)
            case ToMember(member, message):
                if (engine := self._engines.get(f"rollout-{member}")) is not None:
                    engine.peer.send(message)
                    if isinstance(message, Commit):
                        self._engines.commit(engine.name)
                    if isinstance(message, Resend):
                        self._engines.tear(engine.name)
            case Decided(version):
                self._store.record(Published(version))
                self.committed = version
            case Fence(member, reason):
                self._membership = self._membership.left(member)
                return [ReplaceActor(f"rollout-{member}", reason)]
            case FenceTrainer(reason):
                return [EndRun(f"the trainer does not answer: {reason}", "stalled")]
            case Done(version):
                self._current, self._failures, self.served = None, 0, version
                self._count(self._clock.now() - self._began, self._pauses)
                return [VersionServed(version, self._pin)]
            case Failed(reason):
                return self._failed(reason)
            case _:
                raise AssertionError(action)
        return []

    def _failed(self, reason: str) -> list[Decision]:
        """The publication under way has failed: another one is tried, unless too many failed in a
        row."""
        assert self._current is not None
        lost = len(self._current.live) < len(self._current.membership.members)
        self._current, self._failures = None, self._failures + (not lost)
        self.failed = [*self.failed, reason][-RECENT:]
        self._membership = self._membership.renewed()
        logger.warning("publication %d failed and is tried again: %s", self._number, reason)
        if self._failures < FAILURES or lost:
            return []
        return [EndRun(f"{FAILURES} publications failed in a row, the last because of {reason}")]

    def _count(self, seconds: float, pauses: dict[int, float]) -> None:
        self.seconds, self.pauses = (
            [*self.seconds, seconds][-RECENT:],
            [*self.pauses, pauses][-RECENT:],
        )
        count, pause_s = self.total.count + 1, max(pauses.values(), default=0.0)
        self.total = Publications(
            count,
            self.total.seconds + seconds,
            self.total.pause_seconds + pause_s,
            self.total.sent_bytes + self._sent_bytes,
        )
