"""The invariants of a run, recounted. Invariant of its own: it believes nothing that the product
counts, only the events, what the learner was really given, and what engines with those weights
really sample.

Each event is judged when it is appended, against the checker's own account of the run; the
product's state is compared with that account as soon as the task that recorded the event has
finished its step (`look`). A run goes on for no longer than its first violation.
"""

from __future__ import annotations

import hashlib
import math
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from actors.coordinator.coordinator import Outcome
from actors.coordinator.event_store import EventStore
from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.experience.snapshot import Snapshot
from asyncrl.ipc.messages import (
    Chunks,
    Hello,
    Message,
    MicroBatch,
    Sample,
    ScoreRequest,
    ScoreResult,
    StatusUpdate,
)
from asyncrl.simulation import policy
from asyncrl.simulation.checker.event_checks import CHECKS
from asyncrl.simulation.checker.reference_rules import ReferenceRules
from asyncrl.simulation.checker.reference_state import (
    Filling,
    ReferenceRollout,
    ReferenceState,
    gone_on,
)
from asyncrl.simulation.checker.state_comparison import compare, compare_all, compare_shell

if TYPE_CHECKING:
    from asyncrl.simulation.sim_process import SimProcess
    from asyncrl.simulation.world import World

_encode = msgspec.msgpack.Encoder().encode
_event: msgspec.msgpack.Decoder[e.AnyEvent] = msgspec.msgpack.Decoder(e.AnyEvent)
_snapshot = msgspec.msgpack.Decoder(Snapshot)
_TRAINING = (e.Taken, e.Trained, e.StoredForReplay, e.Replayed, e.Published, e.Checkpointed)

SUSPECT = 3
"""Bad chunks that cost an engine its place."""
FOLD_EVERY = 16
"""Steps of tasks with events between two comparisons of the whole state with a fold of its
events."""


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant, self.sentence = invariant, sentence


class Checker(ReferenceRules):
    """Watches one run through all its lives. `violation` is the first thing that was wrong; `stop`
    is called with it."""

    def __init__(self, seed: int, config: Config, train_item: Callable[[int], int | None]) -> None:
        self.seed, self.config = seed, config
        self.train_item = train_item
        self.violation: Violation | None = None
        self.stop: Callable[[], None] = lambda: None
        self.checks: Counter[str] = Counter()
        self.keys: dict[int, int] = {}
        """Whose tokens a rollout's are, for engines and the learner."""
        self.events: list[e.AnyEvent] = []
        self.digest = hashlib.blake2b(digest_size=16)
        self.lost_tail = 0
        self.clock: Callable[[], float] = lambda: 0.0
        self.refused = 0  # verdicts that the plan withheld
        self.written: set[int] = set()  # versions of which a checkpoint was written
        self.garbled = Counter[str]()  # bad chunks that processes sent
        self.lineage = {
            0: policy.initial(seed)
        }  # the weights of each version that training stands on
        self._before: dict[int, int] = {}  # those of versions that a crash undid
        self.trained_by: dict[
            int, set[int]
        ] = {}  # rollouts whose tokens are in the weights of a version
        self._handed: dict[
            int, dict[int, int]
        ] = {}  # by step: rollouts given to the learner, and how many of their tokens counted
        self._undone: set[int] = set()
        self.account = ReferenceState()
        self.here: set[int] = set()  # versions published in this life
        self.prescribed: list[
            tuple[int, list[int]]
        ] = []  # what a crash undid, and has to be taken again
        self.version = 0  # that training started from in this life
        self.closed = 0  # the last version that was published when it began
        self.bound = 0  # units that may be live
        self.leased_at: dict[int, float] = {}
        self._back: list[
            tuple[str, int, str]
        ] = []  # leases that ended at the present moment: whose, their number, the reason
        self._back_at = 0.0
        self._closed = True  # whether the present coordinator is dead, whatever its code still does
        self._fresh = False
        self._looks = 0
        self._overdue: dict[tuple[str, str, str, float], float] = {}
        self.delivered = 0
        self._asked: dict[int, str] = {}  # whom a verdict was asked of last
        self.answered: ScoreResult | None = None
        self.excused = False  # whether what was delivered holds garbage, which is nobody's token

    def violated(self, invariant: str, sentence: str, cause: BaseException | None = None) -> None:
        """Something is wrong: the first thing counts, and ends the simulation."""
        if self.violation is None:
            if cause is not None:
                sentence += "\n" + "".join(traceback.format_exception(cause)[-8:])
            self.violation = Violation(invariant, sentence)
            self.stop()

    def hold(self, invariant: str, true: bool, sentence: str, *what: object) -> None:
        """Count a check; where it fails, say so."""
        self.checks[invariant] += 1
        if not true:
            self.violated(invariant, sentence.format(*what))

    # -------------------------------------------------------------------------------------- a life

    def begin(self, store: EventStore, version: int, cursor: int, last: int) -> None:
        """A coordinator starts with this state, which the first `last` events and the checkpoint of
        `version` must give: it was taken after event `cursor`."""
        self._closed = False
        self.lost_tail += len(self.events) - last
        del self.events[last:]
        self.here = set()
        self._undone.update(
            n for n in range(cursor + 1, last + 1) if isinstance(self.events[n - 1], _TRAINING)
        )
        self.account, self.prescribed = gone_on(self.events, self._undone)
        self.keys.clear()
        self._asked.clear()
        self.answered = None
        kept = [seen for _, members in self.account.kept.values() for seen in members]
        self.keys.update((seen.id, seen.key) for seen in [*self.account.rollouts.values(), *kept])
        self.delivered = self.account.tokens
        self.store = store
        self.closed = max(
            (event.version for event in self.events if isinstance(event, e.Published)), default=0
        )
        self.version, self.bound = version, max(self.most * self.per_group, self.live)
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
                    id in self.account.rollouts,
                    "rollout {} is to be trained again, and is not live",
                    id,
                )
        self.shadow = Experience.of(_snapshot.decode(_encode(store.experience.snapshot())))
        compare_all(self, "restart")

    def close(self) -> None:
        """The coordinator is dead."""
        self._closed = True

    def on_start(self, version: int, weights: int) -> None:
        """A trainer starts from these weights."""
        self.hold(
            "restart",
            self.lineage.get(version) == weights,
            "training starts from other weights of version {} than were made",
            version,
        )
        for later in [v for v in self.lineage if v > version]:
            self._before[later] = self.lineage.pop(later)
        for later in [v for v in self.trained_by if v > version]:
            del self.trained_by[later]
        self._handed = {}

    def on_status(self, status: StatusUpdate) -> None:
        """What a user is shown."""
        self.hold(
            "ledger",
            status.lag_max <= self.max_lag,
            "the display shows a lag of {}",
            status.lag_max,
        )
        weights = self.lineage.get(status.accuracy_version)
        if weights is not None and not (self.refused or self.account.buried["evaluation"]):
            due = policy.accuracy(
                weights, range(self.config.task.eval_size), self.config.rollout.max_new_tokens
            )
            self.hold("evaluation", status.accuracy == due, "version {} is said to be right in {:g}, and is in {:g} of all answers",
                      status.accuracy_version, status.accuracy, due)  # fmt: skip

    def on_keep(self, version: int) -> None:
        """The state is written down for a checkpoint."""
        if self._closed:
            return
        self.look_closely()
        same = (
            Experience.of(_snapshot.decode(_encode(self.store.experience.snapshot())))
            == self.store.experience
        )
        self.hold(
            "restart", same, "the state that is kept for version {} is read as another", version
        )

    def on_blame(self, process: str, reason: str) -> None:
        """The coordinator has an actor replaced."""
        just = self.garbled[process] >= SUSPECT or "cannot be" not in reason
        self.hold(
            "blame",
            just,
            "{} is replaced, and had sent {} chunks that cannot be: {}",
            process,
            self.garbled[process],
            reason,
        )

    def on_outcome(self, outcome: Outcome) -> None:
        """A coordinator ended its run."""
        self.look_closely()
        leased = [seen.id for seen in self.account.rollouts.values() if seen.holder]
        if outcome.ok and "stopped early" not in outcome.reason:
            self.hold(
                "nothing leaks",
                not leased,
                "the run is over, and rollouts {} are still leased",
                leased,
            )

    # -------------------------------------------------------------------------------------- events

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        """The product has applied and appended this event."""
        if self._closed:
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
            self._came_back(event)
        if self.violation is None:
            self.account.apply(event)
        if isinstance(event, e.Leased):
            self.leased_at[event.rollout] = self.clock()
        if isinstance(event, e.Published):
            self.here.add(event.version)
        if isinstance(event, e.Admitted):
            self.keys.update(
                (id, self.account.rollouts[id].key)
                for id in range(event.first, event.first + event.size)
            )
        self._fresh = True

    def _came_back(self, event: e.Sealed | e.Requeued | e.Buried) -> None:
        if self._back_at != self.clock():
            self._back, self._back_at = [], self.clock()
        if (seen := self.account.rollouts.get(event.rollout)) is not None:
            self._back.append(
                (seen.holder, seen.lease, "" if isinstance(event, e.Sealed) else event.reason)
            )

    def came_back(self, holder: str, before: int, reason: str) -> tuple[int, int]:
        """How many leases of an holder, given before that one, have ended at this very moment: for
        that reason, and for any."""
        if self._back_at != self.clock():
            return 0, 0
        ended = [why for whose, number, why in self._back if whose == holder and number < before]
        return ended.count(reason), len(ended)

    # ----------------------------------------------------------------------------- what really was

    def on_told(self, process: str, message: Message) -> None:
        """The coordinator tells an actor this."""
        if isinstance(message, ScoreRequest):
            self._asked[message.rollout] = process

    def on_delivered(self, process: str, message: Message) -> None:
        """The coordinator has received this from an actor; tokens and verdicts must be booked in
        the same step of its task."""
        if isinstance(
            message, Hello
        ):  # what its predecessor still says does not count: it is asked again
            name = process.partition("/")[0]
            self._asked = {
                rollout: whom
                for rollout, whom in self._asked.items()
                if whom.partition("/")[0] != name
            }
        if isinstance(message, ScoreResult) and self._asked.pop(message.rollout, "") == process:
            self.answered = message
            self._fresh = True
        if isinstance(message, Chunks):
            self.delivered += sum(head.count for head in message.heads)
            self.excused |= process in self.garbled
            self._fresh = True

    def on_load(self, version: int, weights: int) -> None:
        """An engine decodes with these weights from now on, under this version."""
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
        """The learner is given this."""
        at = place = 0
        self.hold(
            "order",
            batch.step == max(self.lineage),
            "step {} is given to a trainer of version {}",
            batch.step,
            max(self.lineage),
        )
        handed, again = (
            self._handed.setdefault(batch.step, {}),
            self.account.replayed.get(batch.step, {}),
        )
        for sample in batch.samples:
            seen = self.account.rollouts.get(sample.rollout) or again.get(sample.rollout)
            if seen is None:
                return self.violated(
                    "once",
                    f"rollout {sample.rollout} is trained, and was "
                    f"{self.account.ended.get(sample.rollout)}",
                )
            before = [version for version, trained in self.trained_by.items() if seen.id in trained]
            once = seen.id not in handed and (seen.id in again or not before)
            self.hold(
                "once", once, "rollout {} is trained twice: it is in version {}", seen.id, before
            )
            prompt, end = (
                4 * sample.prompt_tokens,
                4 * (sample.prompt_tokens + sample.response_tokens),
            )
            size = 4 * sample.response_tokens
            whole = (
                bytes(ids[at : at + prompt]) == seen.group.event.prompt
                and bytes(ids[at + prompt : at + end]) == bytes(seen.ids)
                and bytes(behaviour[4 * place : 4 * place + size]) == bytes(seen.behaviour)
            )
            whole = (
                whole
                and [(span.version, span.start, span.end) for span in sample.spans] == seen.spans()
            )
            self.hold(
                "parallel", whole, "what is trained of rollout {} is not what was sampled", seen.id
            )
            for version, start, until in seen.spans():
                weights = self.lineage.get(version)
                if weights is None:
                    return self.violated(
                        "version truth",
                        f"rollout {seen.id} has tokens of version {version}, which was not made",
                    )
                true, true_behaviour = policy.sampled(weights, seen.key, start, until)
                same = bytes(seen.ids[4 * start : 4 * until]) == true.tobytes()
                same = (
                    same
                    and bytes(seen.behaviour[4 * start : 4 * until]) == true_behaviour.tobytes()
                )
                self.hold(
                    "version truth",
                    same,
                    "rollout {}: version {} does not sample [{}, {}) so",
                    seen.id,
                    version,
                    start,
                    until,
                )
            lets = bytes(mask[place : place + sample.response_tokens])
            due = bytes(batch.step - version <= self.max_lag for version in seen.versions)
            self.hold(
                "lag",
                lets == due,
                "rollout {} in step {}: versions {}, mask {}",
                seen.id,
                batch.step,
                seen.versions,
                lets.hex(),
            )
            self._verdicts(batch, sample, seen)
            handed[seen.id] = sum(due)
            at, place = at + end, place + sample.response_tokens
        return None

    def _verdicts(self, batch: MicroBatch, sample: Sample, seen: ReferenceRollout) -> None:
        rewards, given = seen.group.rewards, batch.rewards[sample.group]
        self.hold(
            "verdicts",
            rewards.get(seen.id) == sample.reward,
            "rollout {} is trained with {}",
            seen.id,
            sample.reward,
        )
        its = sample.member is not None and given[sample.member] == sample.reward
        self.hold(
            "verdicts",
            its,
            "the reward of rollout {} is not the {}th of {}",
            seen.id,
            sample.member,
            given,
        )
        if self.config.train.unit == "group":
            scored = [rewards[id] for id in sorted(rewards)]
            self.hold(
                "verdicts",
                given == scored and sample.baseline is None,
                "group {} is trained with {}",
                sample.group,
                given,
            )
            return
        self.hold(
            "verdicts",
            Counter(given) <= Counter(rewards.values()),
            "rollout {} is trained beside {}",
            seen.id,
            given,
        )
        due = self.baseline(seen)
        same = sample.baseline is not None and math.isclose(
            sample.baseline, due, rel_tol=1e-9, abs_tol=1e-12
        )
        self.hold(
            "baseline",
            same,
            "rollout {} is compared with {}, not with {}",
            seen.id,
            sample.baseline,
            due,
        )

    def on_step(self, version: int, weights: int) -> None:
        """The learner made a version."""
        before = self._before.pop(version, weights)
        dependent = any(version in seen.versions for seen in self.account.rollouts.values())
        free = version > self.closed and not dependent
        self.hold(
            "redo",
            before == weights or free,
            "version {} was made again, and is another; tokens of it are live",
            version,
        )
        begun = not self.here or version - 1 in self.here
        self.hold(
            "order",
            begun,
            "version {} was made before engines had version {}, which it starts from",
            version,
            version - 1,
        )
        again = set(self.account.replayed.get(version - 1, {}))
        handed = set(self._handed.pop(version - 1, {}))
        self.hold(
            "once",
            again <= handed,
            "version {} was to be trained on {} again, and had {}",
            version,
            again,
            handed,
        )
        self.trained_by[version] = handed - again
        filling = self.account.steps.get(version - 1, Filling())
        resting = (
            self.config.task.curriculum == "unsolved" and self.config.task.epochs > 0
        )  # what is left of the prompts may be passed over
        over = (resting or self.train_item(self.account.cursor) is None) and not (
            self.account.restarts or self.account.rollouts_untaken
        )
        enough = self.closes(filling) or version <= self.closed or (filling.rollouts > 0 and over)
        self.hold(
            "order",
            enough,
            "version {} was made from {} rollouts with {} tokens",
            version,
            filling.rollouts,
            filling.tokens,
        )
        taken = {seen.id for seen in self.account.rollouts.values() if seen.step == version - 1}
        self.hold(
            "order",
            taken == self.trained_by[version],
            "version {} has {}, not {}",
            version,
            self.trained_by[version],
            taken,
        )
        self.lineage[version] = weights

    # ---------------------------------------------------------------------------------------- look

    def look(self, world: World) -> None:
        """A task has finished its step."""
        if not self._fresh or self._closed or self.violation is not None:
            return
        self._fresh = False
        self._looks += 1
        compare(self)
        run = world.coordinator
        if run is not None and run.store is self.store:
            compare_shell(self, run)
        if self._looks % FOLD_EVERY == 0:
            self.look_closely()

    def look_closely(self) -> None:
        """Compare everything."""
        compare(self)
        self.hold(
            "fold", self.shadow == self.store.experience, "a fold of the events is not the state"
        )
        compare_all(self, "fold")

    def look_at_waits(self, process: SimProcess) -> None:
        """Every wait of a process has a name and ends in time."""
        now = self.clock()
        for wait in process.waits.table():
            named = bool(wait.name and wait.owner) and 0 < wait.deadline_s < float("inf")
            self.hold("waits", named, "{} has the wait {}", process.name, wait)
            if (
                wait.seconds > wait.deadline_s
            ):  # it ends as soon as its task runs, and till then the time stands
                whose = process.name, wait.name, wait.owner, round(now - wait.seconds, 6)
                self.hold(
                    "waits",
                    self._overdue.setdefault(whose, now) == now,
                    "{} has the wait {}",
                    process.name,
                    wait,
                )
