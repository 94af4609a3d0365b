"""The invariants of a run, recounted. Invariant of its own: it believes nothing that the product counts, only the events, what the
learner was really given, and what engines with those weights really sample.

Each event is judged when it is appended, against the witness's own account of the run; the product's state is compared with that
account as soon as the task that recorded the event has finished its step (`look`). A run goes on for no longer than its first violation.
"""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from actors.coordinator.book import Book
from actors.coordinator.coordinator import Outcome
from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.experience.state import Experience, Snapshot
from asyncrl.messages import Chunks, Message, MicroBatch, NoVerdict, Scored, Status
from asyncrl.simulation import policy

if TYPE_CHECKING:
    from asyncrl.simulation.process import Process
    from asyncrl.simulation.world import World

_encode = msgspec.msgpack.Encoder().encode
_event: msgspec.msgpack.Decoder[e.AnyEvent] = msgspec.msgpack.Decoder(e.AnyEvent)
_snapshot = msgspec.msgpack.Decoder(Snapshot)
_TRAINING = (e.Taken, e.Trained, e.Published, e.Checkpointed)

FOLD_EVERY = 16
"""Steps of tasks with events between two comparisons of the whole state with a fold of its events."""


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant, self.sentence = invariant, sentence


class Seen:
    """One rollout, as the events tell it."""

    __slots__ = ("attempt", "behaviour", "group", "id", "ids", "key", "owner", "sealed", "step", "verdict", "versions")

    def __init__(self, id: int, group: _Group, key: int) -> None:
        self.id, self.group, self.key = id, group, key
        self.ids, self.behaviour = bytearray(), bytearray()
        self.versions: list[int] = []
        self.attempt, self.owner, self.sealed = 0, "", False
        self.verdict: Scored | NoVerdict | None = None
        self.step: int | None = None

    def spans(self) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for index, version in enumerate(self.versions):
            if found and found[-1][0] == version:
                found[-1] = version, found[-1][1], index + 1
            else:
                found.append((version, index, index + 1))
        return found


class _Group:
    __slots__ = ("event", "members", "step")

    def __init__(self, event: e.Admitted) -> None:
        self.event = event
        self.members = range(event.first, event.first + event.size)
        self.step: int | None = None


class Witness:
    """Watches one run through all its lives. `violation` is the first thing that was wrong; `stop` is called with it."""

    def __init__(self, seed: int, config: Config, train_item: Callable[[int], int | None]) -> None:
        self.seed, self.config = seed, config
        self.train_item = train_item
        self.violation: Violation | None = None
        self.stop: Callable[[], None] = lambda: None
        self.checks: Counter[str] = Counter()
        self.keys: dict[int, int] = {}
        self.events: list[e.AnyEvent] = []
        self.digest = hashlib.blake2b(digest_size=16)
        self.lost_tail = 0
        self.clock: Callable[[], float] = lambda: 0.0
        self.refused = 0  # verdicts that the plan withheld
        self.garbled: set[str] = set()  # processes that sent garbage
        self.lineage = {0: policy.initial(seed)}  # the weights of each version that training stands on
        self._before: dict[int, int] = {}  # those of versions that a crash undid
        self._trained_by: dict[int, set[int]] = {}  # rollouts whose tokens are in the weights of a version
        self._handed: dict[int, dict[int, int]] = {}  # by step: rollouts given to the learner, and how many of their tokens counted
        self._undone: set[int] = set()
        self.stopped = 0  # drains and such that ended well
        self._forget_account()
        self._fresh = False
        self._looks = 0
        self._delivered = 0
        self._excused = False  # whether what was delivered holds garbage, which is nobody's token

    def _forget_account(self) -> None:
        self.rollouts: dict[int, Seen] = {}
        self.groups: dict[int, _Group] = {}
        self.ended: dict[int, str] = {}
        self.tokens = self.tokens_trained = self.admitted = self.trained = 0
        self.tokens_discarded: Counter[str] = Counter()
        self.discarded: Counter[str] = Counter()
        self.cursor = 0
        self.again: dict[int, int] = {}
        self.published: int | None = None
        self.here: set[int] = set()  # versions published in this life
        self._prescribed: list[tuple[int, list[int]]] = []
        self._touched: set[int] = set()
        self._booked = 0
        self._bound = 0

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

    # ------------------------------------------------------------------------------------------------------------ a life

    def begin(self, book: Book, version: int, cursor: int, last: int) -> None:
        """A coordinator starts with this state, which the first `last` events and the checkpoint of `version` must give: it was
        taken after event `cursor`."""
        self.lost_tail += len(self.events) - last
        del self.events[last:]
        self._forget_account()
        self._undone.update(n for n in range(cursor + 1, last + 1) if isinstance(self.events[n - 1], _TRAINING))
        for number, event in enumerate(self.events, 1):
            if number not in self._undone:
                self._account(event)
        for event in self.events:
            if isinstance(event, e.Taken) and event.rollouts[0] in self.rollouts:
                for id in event.rollouts:
                    self._untake(id)
                if (event.step, event.rollouts) not in self._prescribed:
                    self._prescribed.append((event.step, event.rollouts))
        self._prescribed.sort(key=lambda taking: taking[0])
        self.here = set()
        self._booked = self._delivered = 0
        self.book = book
        self._bound = max((self.config.staleness.depth + 1) * self.config.train.batch_groups, self._groups_live())
        for step, rollouts in self._prescribed:
            self.hold("redo", step >= version, "step {} is prescribed, but training starts from version {}", step, version)
            for id in rollouts:
                self.hold("redo", id in self.rollouts, "rollout {} is to be trained again, and is not live", id)
        self.shadow = Experience.of(_snapshot.decode(_encode(book.experience.snapshot())))
        self._compare_all("restart")

    def _untake(self, id: int) -> None:
        seen = self.rollouts.get(id)
        if seen is not None:
            seen.step = seen.group.step = None

    def on_start(self, version: int, weights: int) -> None:
        """A trainer starts from these weights."""
        self.hold("restart", self.lineage.get(version) == weights, "training starts from other weights of version {} than were made", version)
        for later in [v for v in self.lineage if v > version]:
            self._before[later] = self.lineage.pop(later)
        for later in [v for v in self._trained_by if v > version]:
            del self._trained_by[later]
        self._handed = {}

    def on_status(self, status: Status) -> None:
        """What a user is shown."""
        self.hold("ledger", status.lag_max <= self._max_lag, "the display shows a lag of {}", status.lag_max)

    def on_outcome(self, outcome: Outcome) -> None:
        """A coordinator ended its run."""
        self.look_closely()
        leased = [seen.id for seen in self.rollouts.values() if seen.owner]
        if outcome.ok and "stopped early" not in outcome.reason:
            self.hold("nothing leaks", not leased, "the run is over, and rollouts {} are still leased", leased)

    # ------------------------------------------------------------------------------------------------------------ events

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        """The product has applied and appended this event."""
        self.events.append(event)
        data = _encode(event)
        self.digest.update(f"{self.clock():.9f}".encode())
        self.digest.update(data)
        self.hold("order", number == len(self.events), "event {} is numbered {}", len(self.events), number)
        self.shadow.apply(_event.decode(data))
        if self.violation is None:
            _CHECKS[type(event)](self, event)
        if self.violation is None:
            self._account(event)
        self._fresh = True

    def _live(self, id: int, event: e.AnyEvent) -> Seen:
        seen = self.rollouts.get(id)
        self.hold("once", seen is not None, "{} is of a rollout that was {}", event, self.ended.get(id, "never admitted"))
        if seen is None:
            raise self.violation or AssertionError
        return seen

    def _check_admitted(self, event: e.Admitted) -> None:
        if event.purpose == "train":
            if event.restarts is not None:
                self.hold("prompts", self.again.get(event.restarts) == event.item, "{} restarts what does not wait for it", event)
            else:
                due = self.train_item(self.cursor)
                self.hold("prompts", event.item == due, "prompt {} was admitted, and the next is {}", event.item, due)
                self.hold("prompts", not self.again, "a new prompt came before stale ones that start again: {}", self.again)
            self.hold("generation waits for a redo", not self._prescribed, "group {} was admitted before {} was redone", event.group, "that")
            live = self._groups_live() + 1
            self.hold("memory", live <= self._bound, "{} groups are live, and at most {} may be", live, self._bound)

    def _check_leased(self, event: e.Leased) -> None:
        seen = self._live(event.rollout, event)
        self.hold("leases", not seen.owner and not seen.sealed, "rollout {} was leased to {} while {} has it", seen.id, event.owner, seen.owner)
        self.hold("leases", event.attempt == seen.attempt + 1, "rollout {}'s attempt {} follows {}", seen.id, event.attempt, seen.attempt)
        self.hold("generation waits for a redo", not self._prescribed, "rollout {} was leased before {} was redone", seen.id, "that")

    def _check_extended(self, event: e.Extended) -> None:
        seen = self._live(event.rollout, event)
        start, count = len(seen.versions), len(event.ids) // 4
        self.hold("leases", bool(seen.owner) and event.attempt == seen.attempt, "tokens of rollout {}, which is not leased so", seen.id)
        self.hold(
            "parallel",
            event.start == start and count > 0 and 4 * count == len(event.ids) == len(event.behaviour),
            "rollout {} holds {} tokens; {} bytes of ids and {} of log-probabilities came for {}",
            seen.id, start, len(event.ids), len(event.behaviour), event.start,
        )  # fmt: skip
        self.hold("publication", event.version in self.here, "version {} sampled tokens before it was published", event.version)
        weights = self.lineage.get(event.version)
        self.hold("version truth", weights is not None, "version {} sampled tokens, and was never made", event.version)
        if weights is None or self.violation:
            return
        ids, behaviour = policy.sampled(weights, seen.key, start, start + count)
        self.hold("version truth", event.ids == ids.tobytes(), "rollout {}: version {} samples other ids", seen.id, event.version)
        self.hold(
            "version truth", event.behaviour == behaviour.tobytes(), "rollout {}: version {} has other log-probabilities", seen.id, event.version
        )

    def _check_sealed(self, event: e.Sealed) -> None:
        seen = self._live(event.rollout, event)
        whole = policy.length(seen.key, self.config.rollout.max_new_tokens)
        self.hold("whole", len(seen.versions) == whole, "rollout {} was sealed with {} of {} tokens", seen.id, len(seen.versions), whole)
        self.hold("leases", bool(seen.owner) and not seen.sealed, "rollout {} was sealed, and nobody had it", seen.id)

    def _check_recycled(self, event: e.Recycled) -> None:
        seen = self._live(event.rollout, event)
        self.hold("leases", bool(seen.owner), "rollout {} was recycled, and nobody had it", seen.id)

    def _check_buried(self, event: e.Buried) -> None:
        seen = self._live(event.rollout, event)
        attempts = self.config.rollout.attempts
        self.hold("whole", seen.attempt >= attempts, "rollout {} was buried after {} of {} attempts", seen.id, seen.attempt, attempts)

    def _check_late(self, event: e.Late) -> None:
        self.hold("ledger", event.tokens > 0, "{} late tokens", event.tokens)

    def _check_judged(self, event: e.JudgedAs) -> None:
        seen = self._live(event.rollout, event)
        self.hold("once", seen.sealed and seen.verdict is None, "rollout {} was judged, not sealed or judged before", seen.id)
        if isinstance(event.verdict, Scored):
            due = policy.reward(seen.group.event.item, bytes(seen.ids))
            self.hold("verdicts", event.verdict.reward == due, "rollout {} got {}, and deserves {}", seen.id, event.verdict.reward, due)
        else:
            self.hold("verdicts", self.refused > 0, "rollout {} got {}, and nobody had withheld a verdict", seen.id, event.verdict)

    def _check_taken(self, event: e.Taken) -> None:
        groups = {self._live(id, event).group.event.group: self.rollouts[id].group for id in event.rollouts}
        for group in groups.values():
            members = [self.rollouts[id] for id in group.members if id in self.rollouts]
            scored = [seen.id for seen in members if isinstance(seen.verdict, Scored)]
            self.hold("once", group.step is None, "group {} was taken for step {}, and again", group.event.group, group.step)
            self.hold("whole", all(seen.verdict for seen in members), "group {} was taken before all its verdicts", group.event.group)
            self.hold("whole", set(scored) <= set(event.rollouts), "group {} was not taken whole", group.event.group)
        if self._prescribed:
            due = self._prescribed.pop(0)
            self.hold("redo", due == (event.step, event.rollouts), "{} was taken, and {} had to be taken again", event, due)
        newest = max(self.lineage)
        self.hold("order", event.step in (newest, newest + 1), "step {} takes, and version {} is the last", event.step, newest)

    def _check_trained(self, event: e.Trained) -> None:
        seen = self._live(event.rollout, event)
        step = seen.step
        self.hold("once", step is not None, "rollout {} was trained, and no step had taken it", seen.id)
        if step is None:
            return
        really = self._trained_by.get(step + 1, set())
        self.hold("once", seen.id in really, "rollout {} is booked as trained in step {}, which did not train it", seen.id, step)
        fresh = sum(step - version <= self._max_lag for version in seen.versions)
        stale = {"stale": len(seen.versions) - fresh} if fresh < len(seen.versions) else {}
        self.hold(
            "ledger", (event.trained, event.discarded) == (fresh, stale), "rollout {}: {} and not {} {}", seen.id, event, fresh, stale
        )

    def _check_dropped(self, event: e.Dropped) -> None:
        group = self.groups.get(event.group)
        self.hold("once", group is not None, "group {} was dropped, and is not live", event.group)
        if group is None:
            return
        members = [self.rollouts[id] for id in group.members if id in self.rollouts]
        self.hold("once", group.step is None, "group {} was dropped, and step {} has it", event.group, group.step)
        rewards = [seen.verdict.reward for seen in members if isinstance(seen.verdict, Scored)]
        oldest = min((version for seen in members if isinstance(seen.verdict, Scored) for version in seen.versions), default=0)
        justified = {
            "evaluation": group.event.purpose == "evaluation",
            "k_min": len(rewards) < self.config.rollout.k_min,
            "zero_variance": len(set(rewards)) == 1,
            "stale": max(self.lineage) + 1 - oldest > self._max_lag,
        }
        self.hold("whole", justified.get(event.reason, False), "group {} was dropped as {}", event.group, event.reason)
        again = event.reason == "stale" and self.config.staleness.on_stale == "recycle"
        self.hold("prompts", event.again == again, "{} does not say rightly whether its prompt starts again", event)

    def _check_published(self, event: e.Published) -> None:
        newest = max(self.lineage)
        self.hold("publication", event.version == newest, "version {} was published, and {} is the trainer's", event.version, newest)

    def _check_checkpointed(self, event: e.Checkpointed) -> None:
        self.hold("order", event.version in self.lineage, "a checkpoint of version {}, which does not exist", event.version)

    @property
    def _max_lag(self) -> int:
        staleness = self.config.staleness
        return 2**31 if staleness.on_stale == "train" else staleness.max_lag

    # ----------------------------------------------------------------------------------------------------------- account

    def _account(self, event: e.AnyEvent) -> None:
        match event:
            case e.Admitted():
                group = self.groups[event.group] = _Group(event)
                for member, id in enumerate(group.members):
                    self.keys[id] = policy.key(event.purpose, event.item, member)
                    self.rollouts[id] = Seen(id, group, self.keys[id])
                self.admitted += event.size
                if event.restarts is not None:
                    self.again.pop(event.restarts, None)
                elif event.purpose == "train":
                    self.cursor += 1
            case e.Leased():
                seen = self.rollouts[event.rollout]
                seen.owner, seen.attempt = event.owner, event.attempt
            case e.Extended():
                seen = self.rollouts[event.rollout]
                seen.ids += event.ids
                seen.behaviour += event.behaviour
                count = len(event.ids) // 4
                seen.versions += [event.version] * count
                self.tokens += count
                self._booked += count
            case e.Sealed():
                seen = self.rollouts[event.rollout]
                seen.owner, seen.sealed = "", True
            case e.Recycled():
                self.rollouts[event.rollout].owner = ""
            case e.Buried():
                self._end(event.rollout, event.reason)
            case e.Late():
                self.tokens += event.tokens
                self.tokens_discarded["late"] += event.tokens
                self._booked += event.tokens
            case e.JudgedAs():
                self.rollouts[event.rollout].verdict = event.verdict
            case e.Taken():
                for group in {id: self.rollouts[id].group for id in event.rollouts}.values():
                    group.step = event.step
                    for id in group.members:
                        if (member := self.rollouts.get(id)) is not None:
                            member.step = event.step
                            if isinstance(member.verdict, NoVerdict):
                                self._end(id, "no_verdict")
            case e.Trained():
                self.tokens_trained += event.trained
                self.tokens_discarded.update(event.discarded)
                self.trained += event.trained > 0
                if not event.trained:
                    self.discarded[max(event.discarded, key=lambda reason: event.discarded[reason], default="empty")] += 1
                self.rollouts.pop(event.rollout)
                self.ended[event.rollout] = "trained"
            case e.Dropped():
                for id in self.groups.pop(event.group).members:
                    if id in self.rollouts:
                        self._end(id, event.reason)
                        self._touched.add(id)
                if event.again:
                    self.again[event.group] = self._items[event.group]
            case e.Published():
                self.published = event.version
                self.here.add(event.version)
                for number in [n for n, group in self.groups.items() if group.step is not None and group.step < event.version]:
                    del self.groups[number]
            case e.Checkpointed():
                pass
        self._touched.update([event.rollout] if hasattr(event, "rollout") else getattr(event, "rollouts", ()))

    def _end(self, id: int, reason: str) -> None:
        seen = self.rollouts.pop(id)
        self.ended[id] = f"discarded as {reason}"
        self.discarded[reason] += 1
        if seen.versions:
            self.tokens_discarded[reason] += len(seen.versions)

    def _groups_live(self) -> int:
        return sum(group.event.purpose == "train" for group in self.groups.values())

    # --------------------------------------------------------------------------------------------------- what really was

    def on_delivered(self, process: str, message: Message) -> None:
        """The coordinator has received this from an actor; tokens must be booked in the same step of its task."""
        if isinstance(message, Chunks):
            self._delivered += sum(head.count for head in message.heads)
            self._excused |= process in self.garbled
            self._fresh = True

    def on_load(self, version: int, weights: int) -> None:
        """An engine decodes with these weights from now on, under this version."""
        self.hold("publication", version in self.here, "an engine decodes with version {}, which is not published", version)
        self.hold("publication", self.lineage.get(version) == weights, "an engine decodes with other weights than version {} has", version)

    def on_batch(self, batch: MicroBatch, ids: memoryview, behaviour: memoryview, mask: memoryview) -> None:
        """The learner is given this."""
        at = place = 0
        self.hold("order", batch.step == max(self.lineage), "step {} is given to a trainer of version {}", batch.step, max(self.lineage))
        handed = self._handed.setdefault(batch.step, {})
        for sample in batch.samples:
            seen = self.rollouts.get(sample.rollout)
            if seen is None:
                return self.violated("once", f"rollout {sample.rollout} is trained, and was {self.ended.get(sample.rollout)}")
            before = [version for version, trained in self._trained_by.items() if seen.id in trained]
            self.hold("once", not before and seen.id not in handed, "rollout {} is trained twice: it is in version {}", seen.id, before)
            prompt, end = 4 * sample.prompt_tokens, 4 * (sample.prompt_tokens + sample.response_tokens)
            size = 4 * sample.response_tokens
            whole = (
                bytes(ids[at : at + prompt]) == seen.group.event.prompt
                and bytes(ids[at + prompt : at + end]) == bytes(seen.ids)
                and bytes(behaviour[4 * place : 4 * place + size]) == bytes(seen.behaviour)
            )
            self.hold("parallel", whole, "what is trained of rollout {} is not what was sampled", seen.id)
            for version, start, until in seen.spans():
                weights = self.lineage.get(version)
                if weights is None:
                    return self.violated("version truth", f"rollout {seen.id} has tokens of version {version}, which was not made")
                true, true_behaviour = policy.sampled(weights, seen.key, start, until)
                same = bytes(seen.ids[4 * start : 4 * until]) == true.tobytes()
                same = same and bytes(seen.behaviour[4 * start : 4 * until]) == true_behaviour.tobytes()
                self.hold("version truth", same, "rollout {}: version {} does not sample [{}, {}) so", seen.id, version, start, until)
            lets = bytes(mask[place : place + sample.response_tokens])
            due = bytes(batch.step - version <= self._max_lag for version in seen.versions)
            self.hold("lag", lets == due, "rollout {} in step {}: versions {}, mask {}", seen.id, batch.step, seen.versions, lets.hex())
            rewards = [self._reward(id) for id in seen.group.members]
            scored = [reward for reward in rewards if reward is not None]
            self.hold("verdicts", self._reward(seen.id) == sample.reward, "rollout {} is trained with {}", seen.id, sample.reward)
            self.hold("verdicts", batch.rewards[sample.group] == scored, "group {} is trained with other rewards", sample.group)
            handed[seen.id] = sum(due)
            at, place = at + end, place + sample.response_tokens
        return None

    def _reward(self, id: int) -> float | None:
        seen = self.rollouts.get(id)
        return seen.verdict.reward if seen is not None and isinstance(seen.verdict, Scored) else None

    def on_step(self, version: int, weights: int) -> None:
        """The learner made a version."""
        before = self._before.pop(version, weights)
        dependent = any(version in seen.versions for seen in self.rollouts.values())
        self.hold("redo", before == weights or not dependent, "version {} was made again, and is another; tokens of it are live", version)
        self._trained_by[version] = set(self._handed.pop(version - 1, {}))
        groups = {self.rollouts[id].group.event.group for id in self._trained_by[version] if id in self.rollouts}
        most = self.config.train.batch_groups
        self.hold("order", 0 < len(groups) <= most, "version {} was made from {} groups of at most {}", version, len(groups), most)
        self.lineage[version] = weights

    # -------------------------------------------------------------------------------------------------------------- look

    def look(self, world: World) -> None:
        """A task has finished its step."""
        if not self._fresh or self.violation is not None:
            return
        self._fresh = False
        self._looks += 1
        self._compare()
        run, coordinator = world.coordinator, world.processes.get("coordinator-0")
        if run is not None and run.book is self.book and coordinator is not None and coordinator.alive:
            self._compare_shell(world)
        if self._looks % FOLD_EVERY == 0:
            self.look_closely()

    def look_closely(self) -> None:
        """Compare everything."""
        self._compare()
        self.hold("fold", self.shadow == self.book.experience, "a fold of the events is not the state")
        self._compare_all("fold")

    def _compare(self) -> None:
        experience = self.book.experience
        tokens, rollouts = experience.ledger.tokens, experience.ledger.rollouts
        live = sum(len(seen.versions) for seen in self.rollouts.values())
        mine = (self.tokens, self.tokens_trained, live, +self.tokens_discarded)
        theirs = (tokens.total, tokens.trained, tokens.live, Counter(tokens.discarded))
        self.hold("ledger", mine == theirs, "tokens: {}, and the ledger says {}", mine, theirs)
        mine = (self.admitted, self.trained, len(self.rollouts), +self.discarded)
        theirs = (rollouts.total, rollouts.trained, rollouts.live, Counter(rollouts.discarded))
        self.hold("ledger", mine == theirs, "rollouts: {}, and the ledger says {}", mine, theirs)
        self.hold("ledger", experience.ledger.balances(), "the ledger does not balance")
        live = self._groups_live()
        self.hold("queue", experience.groups_live == live, "{} groups are live, not {}", live, experience.groups_live)
        queued = [s for s in self.rollouts.values() if s.sealed and s.step is None and s.group.event.purpose == "train"]
        size = 8 * sum(len(seen.versions) for seen in queued)
        theirs2 = experience.queue_items, experience.queue_bytes
        self.hold("queue", theirs2 == (len(queued), size), "the queue holds {} of {} bytes, not {}", len(queued), size, theirs2)
        for id in self._touched:
            self._compare_rollout(id)
        self._touched.clear()

    def _compare_rollout(self, id: int) -> None:
        seen, theirs = self.rollouts.get(id), self.book.experience.rollouts.get(id)
        if seen is None or theirs is None:
            self.hold("once", seen is None and theirs is None, "rollout {} is live for one, and {} for the other", id, self.ended.get(id))
            return
        same = seen.ids == theirs.ids and seen.behaviour == theirs.behaviour and seen.spans() == [(s.version, s.start, s.end) for s in theirs.spans]
        self.hold("parallel", same, "rollout {} is not what was sampled: spans {}", id, theirs.spans)
        self.hold(
            "leases", (seen.owner, seen.attempt) == (theirs.owner, theirs.attempt), "rollout {} is with {}, not with {}", id, seen.owner, theirs.owner
        )

    def _compare_all(self, invariant: str) -> None:
        experience = self.book.experience
        self.hold(invariant, self.rollouts.keys() == experience.rollouts.keys(), "other rollouts are live than events say")
        self.hold(invariant, self.groups.keys() == experience.groups.keys(), "other groups are live than events say: {} {}", *map(list, (self.groups, experience.groups)))
        self.hold(invariant, self.cursor == experience.items("train"), "the cursor is {}, not {}", experience.items("train"), self.cursor)
        self.hold(invariant, self.again == experience.restarts, "{} start again, not {}", self.again, experience.restarts)
        for id in self.rollouts:
            self._compare_rollout(id)
        self._compare()

    def _compare_shell(self, world: World) -> None:
        run = world.coordinator
        assert run is not None
        mine = {seen.id: seen.owner for seen in self.rollouts.values() if seen.owner}
        held = [(id, seat.name) for seat in run.seats for ids in seat.held.values() for id in ids]
        self.hold("slots", len(held) == len(mine) and dict(held) == mine, "engines hold {}, and leased are {}", sorted(held), sorted(mine.items()))
        with_, load = run.judgement._with, run.judgement._load
        counted = Counter(name for name, _ in with_.values())
        self.hold("slots", counted == +Counter(load), "reward actors have {}, and {} are counted", counted, load)
        if self._excused:
            self._delivered, self._excused = self._booked, False
        self.hold(
            "tokens are booked", self._delivered == self._booked, "{} tokens were delivered, and {} are booked", self._delivered, self._booked
        )

    def look_at_waits(self, process: Process) -> None:
        """Every wait of a process has a name and ends in time."""
        for wait in process.waits.table():
            fine = bool(wait.name and wait.owner) and 0 < wait.deadline_s < float("inf") and wait.seconds <= wait.deadline_s + 1e-6
            self.hold("waits", fine, "{} has the wait {}", process.name, wait)

    @property
    def _items(self) -> dict[int, int]:
        return {event.group: event.item for event in self.events if isinstance(event, e.Admitted)}


_CHECKS: dict[type, Callable[[Witness, e.AnyEvent], None]] = {
    e.Admitted: Witness._check_admitted,
    e.Leased: Witness._check_leased,
    e.Extended: Witness._check_extended,
    e.Sealed: Witness._check_sealed,
    e.Recycled: Witness._check_recycled,
    e.Buried: Witness._check_buried,
    e.Late: Witness._check_late,
    e.JudgedAs: Witness._check_judged,
    e.Taken: Witness._check_taken,
    e.Trained: Witness._check_trained,
    e.Dropped: Witness._check_dropped,
    e.Published: Witness._check_published,
    e.Checkpointed: Witness._check_checkpointed,
}  # type: ignore[dict-item]
