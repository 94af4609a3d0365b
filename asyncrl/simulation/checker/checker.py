"""The checker of a run: it judges each event when it is appended, against the reference, and
compares the product's state with the reference as soon as the task that recorded the event has
finished its step (`look`). A run goes on for no longer than its first violation.

Invariant: the checker believes nothing that the product counts, only the events, what the learner
was really given, and what engines with those weights really sample.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.coordinator.coordinator import Coordinator
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.config import Config
from asyncrl.config.engines import capabilities
from asyncrl.experience import events as e
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.experience import Experience
from asyncrl.experience.snapshot import Snapshot
from asyncrl.messages import Chunks, Message, MicroBatch, Play, Sample, StatusUpdate, Stepped
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.simulation import policy
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.evaluation_witness import EvaluationWitness
from asyncrl.simulation.checker.event_checks import CHECKS
from asyncrl.simulation.checker.impossible_events import in_turn
from asyncrl.simulation.checker.lease_witness import LeaseWitness
from asyncrl.simulation.checker.lending_witness import LendingWitness
from asyncrl.simulation.checker.prune_checks import OpenQuestions
from asyncrl.simulation.checker.publication_witness import PublicationWitness
from asyncrl.simulation.checker.reason_witness import ReasonWitness
from asyncrl.simulation.checker.reference_recovery import gone_on
from asyncrl.simulation.checker.reference_rollouts import ReferenceCall
from asyncrl.simulation.checker.schedule_witness import ScheduleWitness
from asyncrl.simulation.checker.score_witness import ScoreWitness
from asyncrl.simulation.checker.state_comparison import compare, compare_all, compare_shell
from asyncrl.simulation.checker.status_checks import compare_status
from asyncrl.simulation.checker.training_checks import check_batch, check_scores, check_step
from asyncrl.simulation.checker.verdict_witness import VerdictWitness
from asyncrl.simulation.checker.wait_witness import WaitWitness
from asyncrl.simulation.checker.work_checks import check_leases, check_pool
from asyncrl.simulation.policy import Rewards

if TYPE_CHECKING:
    from typing_extensions import Buffer

_encode = msgspec.msgpack.Encoder().encode
_event: msgspec.msgpack.Decoder[e.AnyEvent] = msgspec.msgpack.Decoder(e.AnyEvent)
_snapshot = msgspec.msgpack.Decoder(Snapshot)
_TRAINING = (e.Taken, e.Trained, e.StoredForReplay, e.Replayed, e.Published, e.Checkpointed)

FOLD_EVERY = 16
"""Steps of tasks with events between two comparisons of the whole state with a fold of its
events."""
STATUS_EVERY = 50
"""The same between two comparisons of the status that people see."""


class Checker(CheckedRun):
    """Watches one run through all its lives."""

    def __init__(self, seed: int, config: Config, rewards: Rewards, *, steady: bool = True) -> None:
        super().__init__(seed, config, rewards, steady=steady)
        self._undone: set[int] = set()  # numbers of events that a crash undid
        # those, by the version for which a state was written, and the event after which
        self._kept: dict[tuple[int, int], set[int]] = {}
        self._dead = True  # the present coordinator is, whatever its code still does
        self._fresh = False  # there is something to look at
        self._looks = 0
        self._keeps = capabilities(config.engine.kind).keeps_versions
        self.evaluations = EvaluationWitness(self)
        self.reasons = ReasonWitness(self)
        self.waits = WaitWitness(self)
        self._witnesses()

    def _witnesses(self) -> None:
        self.publications = PublicationWitness(self, keeps=self._keeps)
        self.leases = LeaseWitness(self)
        self.lending = LendingWitness(self)
        self.verdicts = VerdictWitness(self)
        self.schedule = ScheduleWitness(self)
        self.proximal = ScoreWitness(self)
        self.questions = OpenQuestions(self)

    # -------------------------------------------------------------------------------------- a life

    def on_begin(
        self,
        store: EventStore,
        version: int,
        cursor: int,
        last: int,
        evaluated: Collection[int] = (),
    ) -> None:
        self._dead = False
        self.evaluations.begin(evaluated)
        self.lost_tail += len(self.events) - last
        del self.events[last:]
        self.here = set()
        # a life of which the disk has nothing has undone nothing, and written no state
        self._kept = {at: undone for at, undone in self._kept.items() if at[1] <= last}
        self._undone = self._kept.get((version, cursor), self._undone) | {
            n for n in range(cursor + 1, last + 1) if isinstance(self.events[n - 1], _TRAINING)
        }
        self.reference, self.prescribed = gone_on(self.events, self._undone)
        self._witnesses()
        self.episodes.begin()
        self.closable.clear()
        self.proximal.begin()
        self.reasons.begin()
        self.answered = []
        self.delivered = self.reference.tokens
        self.store = store
        self.closed = max(
            (event.version for event in self.events if isinstance(event, e.Published)), default=0
        )
        self.heard_version = version
        self.version, self.bound = version, max(self.max_live_filtered * self.per_group, self.live)
        for step, rollouts in self.prescribed:
            self.hold(
                "redo",
                step >= version,
                "step {} is prescribed, but training starts from version {}",
                step,
                version,
            )
            for id in rollouts:
                self.hold(
                    "redo",
                    id in self.reference.rollouts,
                    "rollout {} is to be trained again, and is not live",
                    id,
                )
        self.shadow = Experience.of(_snapshot.decode(_encode(store.experience.snapshot())))
        compare_all(self, "restart")

    def on_death(self) -> None:
        self._dead = True

    def on_start(self, version: int, weights: int) -> None:
        self.hold(
            "restart",
            self.lineage.get(version) == weights,
            "training starts from other weights of version {} than were made",
            version,
        )
        for later in [v for v in self.lineage if v > version]:
            self.undone_weights[later] = self.lineage.pop(later)
        for later in [v for v in self.trained_by if v > version]:
            del self.trained_by[later]
        self.handed = {}

    def on_status(self, update: StatusUpdate) -> None:
        lag = update.lag_max
        self.hold("ledger", lag <= self.max_lag, "the display shows a lag of {}", lag)
        self.evaluations.shown(update)

    def on_keep(self, version: int) -> None:
        if self._dead:
            return
        self._kept[version, len(self.events)] = set(self._undone)
        self.look_closely()
        same = (
            Experience.of(_snapshot.decode(_encode(self.store.experience.snapshot())))
            == self.store.experience
        )
        self.hold(
            "restart", same, "the state that is kept for version {} is read as another", version
        )

    def on_blame(self, start: str, reason: str) -> None:
        if "owes a verdict" in reason:
            self.verdicts.overdue(start)
        elif "streamed nothing" in reason:
            self.leases.silent(start)
        self.reasons.replaced(start, reason)

    def on_outcome(self, outcome: Outcome) -> None:
        self.look_closely()
        self.reasons.over(outcome, self.publications.row)

    # -------------------------------------------------------------------------------------- events

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        if self._dead:
            return
        self.events.append(event)
        data = _encode(event)
        self.digest.update(f"{self.clock():.9f}".encode())
        self.digest.update(data)
        self.hold(
            "order", number == len(self.events), "event {} is numbered {}", len(self.events), number
        )
        for wrong in in_turn(self.reference, event, number) if self.violation is None else ():
            self._refused(wrong)
        self.shadow.apply(_event.decode(data))
        if self.violation is None:
            CHECKS[type(event)](self, event)
        if self.violation is None:
            self._witnessed(number, event)
        if isinstance(event, e.Sealed | e.Answered | e.Requeued | e.Buried | e.Pruned):
            self._lease_ended(event)
        if self.violation is None:
            self.reference.apply(event)
        if isinstance(event, e.Published):
            self.here.add(event.version)
        self._fresh = True

    def _refused(self, event: e.AnyEvent) -> None:
        """Have the fold of the events refuse one that cannot happen. `look_closely` shows whether
        it has changed anything."""
        try:
            self.shadow.apply(event)
        except ImpossibleEvent:
            refused = True
        else:
            refused = False
        self.hold("impossible", refused, "{} cannot happen, and was not refused", event)

    def _witnessed(self, number: int, event: e.AnyEvent) -> None:
        """Tell the witnesses of an event, before the reference takes it in."""
        call = self._call_of(event)
        match event:
            case e.Leased():
                self.leases.leased(event)
                self.lending.leased(event)
            case e.Extended():
                self.proximal.extended(event)
                self.episodes.extended(event)
            case e.Sealed() | e.Answered() if call is not None:
                self.leases.sealed(call)
            case e.Requeued() if call is not None and call.holder:
                self.leases.ended(call, event.reason, failed=event.failed)
            case e.Buried() if call is not None and call.holder:
                self.leases.ended(call, event.reason, failed=True)
            case e.Pruned() if call is not None and call.holder:
                self.leases.ended(call, event.reason, failed=False)
            case e.Dropped():
                self._dropped(event)
            case e.Discarded():
                self.reasons.left(event)
            case e.Taken():
                self.reasons.taken()
                self.closable[event.step] = self.clock()
            case e.Published():
                if event.version not in self.here:
                    self.closable[event.version] = self.clock()
                self.publications.decided()
                self.schedule.published(event)
            case e.Checkpointed():
                self.schedule.checkpointed(number)
            case e.Admitted(split="evaluation"):
                self.schedule.evaluated()
                self.publications.evaluated()

    def _dropped(self, event: e.Dropped) -> None:
        group = self.reference.groups[event.group]
        self.reasons.left(event)
        for call in self.reference.calls():
            if call.holder and call.group is group:
                self.leases.ended(call, event.reason, failed=False)
        if self.evaluations.dropped(event, group):
            self.schedule.given_up()

    def _call_of(self, event: e.AnyEvent) -> ReferenceCall | None:
        """The live call, or rollout of one turn, that an event names."""
        id = event.call if isinstance(event, e.Answered) else getattr(event, "rollout", None)
        return None if id is None else self.reference.call(id)

    def _lease_ended(self, event: e.Sealed | e.Answered | e.Requeued | e.Buried | e.Pruned) -> None:
        if (call := self._call_of(event)) is not None:
            reason = "" if isinstance(event, e.Sealed | e.Answered) else event.reason
            self.lease_ended(call.holder, call.lease, reason)

    # ----------------------------------------------------------------------------- what really was

    def on_told(self, start: str, message: Message, buffers: Sequence[Buffer]) -> None:
        if self._dead:
            return
        self.episodes.replies.told(start, message, buffers)
        self.publications.told(start, message)
        self.leases.told(start, message)
        self.lending.told(start, message)
        self.verdicts.told(start, message)
        self.schedule.told(message)
        if self.config.staleness.proximal == "boundary":
            self.proximal.told(message)

    def on_heard(self, start: str, message: Message) -> None:
        self.publications.heard(start, message)
        self.lending.heard(start, message)

    def on_hung_up(self, start: str) -> None:
        self.leases.hung_up(start)

    def on_delivered(self, start: str, message: Message, buffers: Sequence[Buffer]) -> None:
        """Remember tokens and verdicts, which must be booked in the same step of the task, and what
        agents say, of which events follow in it."""
        self.episodes.handling(start.partition("/")[0], message, buffers)
        self.reasons.heard(start)
        if isinstance(message, Stepped):
            self.heard_version = message.version
        self.publications.delivered(start, message)
        self.leases.delivered(start, message)
        self.lending.delivered(message)
        self.schedule.delivered(message)
        if verdicts := self.verdicts.delivered(start, message):
            self.answered = verdicts
            self._fresh = True
        if isinstance(message, Chunks):
            self.delivered += sum(head.count for head in message.heads)
            self.excused |= start in self.garbled
            self._fresh = True

    def on_garbage(self, start: str, chunks: int) -> None:
        self.garbled[start] += chunks

    def on_wrong_weights(self, start: str) -> None:
        self.reasons.wrong_weights(start)

    def on_refusal(self) -> None:
        self.refused += 1

    def on_agent_end(self, play: Play, failed: str, left: Collection[int]) -> None:
        self.episodes.ended(play, failed, left)

    def on_judging(self, start: str, answers: int) -> None:
        self.verdicts.judging(start, answers)

    def on_written(self, start: str, still: bool) -> None:
        self.hold("publication", still, "the weights of {} are written while it decodes", start)

    def on_resumed(self, start: str, whole: bool) -> None:
        self.hold("publication", whole, "{} goes on with weights of no version", start)

    def on_let_go(self, start: str, publication: int) -> None:
        self.publications.let_go(start, publication)

    def on_checkpoint(self, version: int, weights: int) -> None:
        self.written.add(version)
        self.hold(
            "whole",
            self.lineage.get(version) == weights,
            "the checkpoint of version {} has other weights than were made",
            version,
        )

    def on_load(self, start: str, version: int, weights: int, pin: bool) -> None:
        self.publications.loaded(start, version, pin)
        self.hold(
            "publication",
            version in self.here,
            "an engine decodes with version {}, which is not published",
            version,
        )
        self.hold(
            "publication",
            self.lineage.get(version) == weights,
            "an engine decodes with other weights than version {} has",
            version,
        )

    def on_average(self, start: str, version: int, weights: int) -> None:
        made = self.lineage.get(version)
        self.hold(
            "publication",
            version in self.here and made is not None and policy.average(made) == weights,
            "{} keeps other weights as the average of version {} than it has",
            start,
            version,
        )

    def on_batch(
        self, batch: MicroBatch, ids: memoryview, behaviour: memoryview, mask: memoryview
    ) -> None:
        check_batch(self, batch, ids, behaviour, mask)

    def on_scores(
        self, step: int, sample: Sample, scores: NDArray[np.float32], mask: NDArray[np.uint8]
    ) -> None:
        check_scores(self, step, sample, scores, mask)

    def on_step(self, version: int, weights: int) -> None:
        check_step(self, version, weights)

    # ---------------------------------------------------------------------------------------- look

    def look(self, coordinator: Coordinator | None) -> None:
        """Compare the product's state with the reference, where a task has recorded events in the
        step that it has just finished."""
        if not self._dead:
            self.episodes.handled()
        if not self._fresh or self._dead or self.violation is not None:
            return
        self._fresh = False
        self._looks += 1
        self.schedule.look()
        closely = self._looks % FOLD_EVERY == 0
        if not closely:
            compare(self)
        if coordinator is not None and coordinator.parts.store is self.store:
            compare_shell(self, coordinator)
            self.lending.compared(coordinator)
            if closely:
                check_pool(self, coordinator.parts.engines)
                check_leases(self, coordinator.parts.leases)
            if self._looks % STATUS_EVERY == 0:
                compare_status(self, coordinator)
        if closely:
            self.look_closely()

    def look_closely(self) -> None:
        """Compare everything there is with the reference, and with a fold of the events."""
        self.hold(
            "fold", self.shadow == self.store.experience, "a fold of the events is not the state"
        )
        compare_all(self, "fold")

    def look_at_debts(self, stopped: bool) -> None:
        """Check that nothing is owed for long. `stopped` is True while the coordinator stands
        still."""
        if not self._dead:
            self.schedule.look()
            if not stopped:
                self.leases.look()
                self.lending.look()
                self.questions.look()

    def look_at_engine(self, start: str, kept: set[int], held: set[int]) -> None:
        """Check the versions that an engine keeps, and the rollouts that it holds."""
        self.publications.look(start, kept)
        self.lending.device(start, held)

    def look_at_disk(self, last: int) -> None:
        """Check that no event is called durable that is not on the disk, whose last is this."""
        if not self._dead:
            durable = self.store.durable
            self.hold("durable", durable <= last, "{} is durable, and on disk is {}", durable, last)

    def look_at_waits(self, name: str, waits: Waits) -> None:
        """Check that every wait of the process of that name has a name, and ends in time."""
        self.waits.look(name, waits)
