"""The checker of a run: it judges each event when it is appended, against the reference, and
compares the product's state with the reference as soon as the task that recorded the event has
finished its step (`look`). A run goes on for no longer than its first violation.

Invariant: the checker believes nothing that the product counts, only the events, what the learner
was really given, and what engines with those weights really sample.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from actors.coordinator.coordinator import Coordinator
from actors.coordinator.event_store import EventStore
from actors.coordinator.lifecycle import Outcome
from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.experience.snapshot import Snapshot
from asyncrl.ipc.messages import (
    Chunks,
    Hello,
    Message,
    MicroBatch,
    ScoreRequest,
    ScoreResult,
    StatusUpdate,
)
from asyncrl.ipc.waits import Waits
from asyncrl.simulation import policy
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.event_checks import CHECKS
from asyncrl.simulation.checker.reference_state import gone_on
from asyncrl.simulation.checker.state_comparison import compare, compare_all, compare_shell
from asyncrl.simulation.checker.training_checks import check_batch, check_step

_encode = msgspec.msgpack.Encoder().encode
_event: msgspec.msgpack.Decoder[e.AnyEvent] = msgspec.msgpack.Decoder(e.AnyEvent)
_snapshot = msgspec.msgpack.Decoder(Snapshot)
_TRAINING = (e.Taken, e.Trained, e.StoredForReplay, e.Replayed, e.Published, e.Checkpointed)

SUSPECT = 3
"""Bad chunks that cost an engine its place."""
FOLD_EVERY = 16
"""Steps of tasks with events between two comparisons of the whole state with a fold of its
events."""


class Checker(CheckedRun):
    """Watches one run through all its lives."""

    def __init__(self, seed: int, config: Config, train_item: Callable[[int], int | None]) -> None:
        super().__init__(seed, config, train_item)
        self._undone: set[int] = set()  # numbers of events that a crash undid
        self._dead = True  # the present coordinator is, whatever its code still does
        self._fresh = False  # there is something to look at
        self._looks = 0
        self._overdue: dict[tuple[str, str, str, float], float] = {}
        self._asked: dict[int, str] = {}  # by rollout: the start that its verdict was asked of last

    # -------------------------------------------------------------------------------------- a life

    def on_begin(self, store: EventStore, version: int, cursor: int, last: int) -> None:
        self._dead = False
        self.lost_tail += len(self.events) - last
        del self.events[last:]
        self.here = set()
        self._undone.update(
            n for n in range(cursor + 1, last + 1) if isinstance(self.events[n - 1], _TRAINING)
        )
        self.reference, self.prescribed = gone_on(self.events, self._undone)
        self.keys.clear()
        self._asked.clear()
        self.answered = None
        kept = [seen for _, members in self.reference.kept.values() for seen in members]
        self.keys.update((seen.id, seen.key) for seen in [*self.reference.rollouts.values(), *kept])
        self.delivered = self.reference.tokens
        self.store = store
        self.closed = max(
            (event.version for event in self.events if isinstance(event, e.Published)), default=0
        )
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
        weights = self.lineage.get(update.accuracy_version)
        if weights is not None and not (self.refused or self.reference.buried["evaluation"]):
            due = policy.accuracy(
                weights, range(self.config.task.eval_size), self.config.rollout.max_new_tokens
            )
            self.hold(
                "evaluation",
                update.accuracy == due,
                "version {} is said to be right in {:g}, and is in {:g} of all answers",
                update.accuracy_version,
                update.accuracy,
                due,
            )

    def on_keep(self, version: int) -> None:
        if self._dead:
            return
        self.look_closely()
        same = (
            Experience.of(_snapshot.decode(_encode(self.store.experience.snapshot())))
            == self.store.experience
        )
        self.hold(
            "restart", same, "the state that is kept for version {} is read as another", version
        )

    def on_blame(self, start: str, reason: str) -> None:
        just = self.garbled[start] >= SUSPECT or "cannot be" not in reason
        self.hold(
            "blame",
            just,
            "{} is replaced, and had sent {} chunks that cannot be: {}",
            start,
            self.garbled[start],
            reason,
        )

    def on_outcome(self, outcome: Outcome) -> None:
        self.look_closely()
        leased = [seen.id for seen in self.reference.rollouts.values() if seen.holder]
        if outcome.ok and "stopped early" not in outcome.reason:
            self.hold(
                "nothing leaks",
                not leased,
                "the run is over, and rollouts {} are still leased",
                leased,
            )

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
        self.shadow.apply(_event.decode(data))
        if self.violation is None:
            CHECKS[type(event)](self, event)
        if isinstance(event, e.Sealed | e.Requeued | e.Buried):
            self._lease_ended(event)
        if self.violation is None:
            self.reference.apply(event)
        if isinstance(event, e.Leased):
            self.leased_at[event.rollout] = self.clock()
        if isinstance(event, e.Published):
            self.here.add(event.version)
        if isinstance(event, e.Admitted):
            self.keys.update(
                (id, self.reference.rollouts[id].key)
                for id in range(event.first, event.first + event.size)
            )
        self._fresh = True

    def _lease_ended(self, event: e.Sealed | e.Requeued | e.Buried) -> None:
        if (seen := self.reference.rollouts.get(event.rollout)) is not None:
            reason = "" if isinstance(event, e.Sealed) else event.reason
            self.lease_ended(seen.holder, seen.lease, reason)

    # ----------------------------------------------------------------------------- what really was

    def on_told(self, start: str, message: Message) -> None:
        if isinstance(message, ScoreRequest):
            self._asked[message.rollout] = start

    def on_delivered(self, start: str, message: Message) -> None:
        """Remember tokens and verdicts, which must be booked in the same step of the task."""
        if isinstance(message, Hello):
            # What its predecessor still says does not count: it is asked again.
            name = start.partition("/")[0]
            self._asked = {
                rollout: asked
                for rollout, asked in self._asked.items()
                if asked.partition("/")[0] != name
            }
        if isinstance(message, ScoreResult) and self._asked.pop(message.rollout, "") == start:
            self.answered = message
            self._fresh = True
        if isinstance(message, Chunks):
            self.delivered += sum(head.count for head in message.heads)
            self.excused |= start in self.garbled
            self._fresh = True

    def on_garbage(self, start: str, chunks: int) -> None:
        self.garbled[start] += chunks

    def on_refusal(self) -> None:
        self.refused += 1

    def on_checkpoint(self, version: int) -> None:
        self.written.add(version)

    def on_load(self, version: int, weights: int) -> None:
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

    def on_batch(
        self, batch: MicroBatch, ids: memoryview, behaviour: memoryview, mask: memoryview
    ) -> None:
        check_batch(self, batch, ids, behaviour, mask)

    def on_step(self, version: int, weights: int) -> None:
        check_step(self, version, weights)

    # ---------------------------------------------------------------------------------------- look

    def look(self, coordinator: Coordinator | None) -> None:
        """Compare the product's state with the reference, where a task has recorded events in the
        step that it has just finished."""
        if not self._fresh or self._dead or self.violation is not None:
            return
        self._fresh = False
        self._looks += 1
        compare(self)
        if coordinator is not None and coordinator.parts.store is self.store:
            compare_shell(self, coordinator)
        if self._looks % FOLD_EVERY == 0:
            self.look_closely()

    def look_closely(self) -> None:
        """Compare everything there is with the reference, and with a fold of the events."""
        compare(self)
        self.hold(
            "fold", self.shadow == self.store.experience, "a fold of the events is not the state"
        )
        compare_all(self, "fold")

    def look_at_waits(self, name: str, waits: Waits) -> None:
        """Check that every wait of the process of that name has a name, and ends in time."""
        now = self.clock()
        for wait in waits.table():
            named = bool(wait.name and wait.owner) and 0 < wait.deadline_s < float("inf")
            self.hold("waits", named, "{} has the wait {}", name, wait)
            # It ends as soon as its task runs, and till then the time stands.
            if wait.seconds > wait.deadline_s:
                key = name, wait.name, wait.owner, round(now - wait.seconds, 6)
                ends = self._overdue.setdefault(key, now) == now
                self.hold("waits", ends, "{} has the wait {}", name, wait)
