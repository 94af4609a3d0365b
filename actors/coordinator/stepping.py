"""Finished work to optimizer steps. Invariant: a step is closed with all that it takes, and only
from a version that the engines serve.

    what is chosen (selection.py) → micro-batches, at most OUTSTANDING with the trainer
    → with all of it taken the step is closed, once the version it starts from is published → Stepped: a version more

The micro-batches of a step are trained while its other groups are still being generated, and those
of the next while the weights travel. A step is not closed before the version it starts from has
reached the engines, so what the trainer holds is what it publishes.

A rollout is booked as trained when the optimizer step that it belongs to was taken, not before.

After a crash the steps since the checkpoint are taken again, each exactly as it was
(`asyncrl/experience/recovery.py`). Until the trainer has made the last of those versions nothing is
published.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
import trio

from actors.coordinator.batching import Batching, baseline
from actors.coordinator.event_store import EventStore
from actors.coordinator.generation import Generation
from actors.coordinator.peers import Peer
from asyncrl.config import Config
from asyncrl.config.flow import max_lag
from asyncrl.config.losses import advantage_of
from asyncrl.experience.events import Checkpointed, Replayed, StoredForReplay, Taken, Trained
from asyncrl.experience.micro_batches import micro_batches
from asyncrl.experience.replay_buffer import ReplayGroup
from asyncrl.experience.rollout import ImpossibleEvent, Rollout, RolloutStatus
from asyncrl.ipc.messages import (
    CloseStep,
    Consumed,
    MicroBatch,
    Sample,
    Save,
    Saved,
    Scored,
    ScoreProximal,
    Stepped,
    TokenCount,
)
from asyncrl.observe.summary import Alarmed
from asyncrl.strategies.replay_choice import Candidate, replayed, useful
from staleness.alarms import Alarm, alarms
from staleness.lag import fresh_mask, tokens_by_lag

OUTSTANDING = 2
"""Micro-batches that may be with the trainer: the one it works on, and the next, so that it never
asks."""

logger = logging.getLogger(__name__)


class PackedRollout(NamedTuple):
    """A rollout on its way to the trainer."""

    prompt: bytes
    ids: bytes | bytearray
    behaviour: bytes | bytearray
    sample: Sample


def _again(kept: ReplayGroup, place: int) -> PackedRollout:
    """A member of a group that was trained before."""
    member = kept.members[place]
    sizes = len(kept.prompt) // 4, len(member.ids) // 4
    sample = Sample(
        member.rollout, kept.group, *sizes, member.reward, list(member.spans), member=place
    )
    return PackedRollout(kept.prompt, member.ids, member.behaviour, sample)


class Stepping:
    """The steps of a run, from the trainer's first version on."""

    def __init__(
        self, store: EventStore, generation: Generation, trainer: Peer, version: int, config: Config
    ) -> None:
        self._store = store
        self._generation = generation
        self.trainer = trainer
        self._config = config
        self.version = version  # of the trainer's weights
        # the open step: `version`, or one more while the optimizer step before it is under way
        self._step = version
        self._selection = Batching(store, config, lambda: generation.exhausted)
        self._index = 0  # micro-batches sent for the open step
        self._outstanding: dict[
            tuple[int, int], Counter[int]
        ] = {}  # micro-batches with the trainer: their tokens by lag
        self._consumed: defaultdict[int, list[tuple[list[TokenCount], Counter[int]]]] = defaultdict(
            list
        )  # by step
        self.saved = self._saving = (
            version  # the last checkpoint that is complete, and that was asked for
        )
        self._due = False  # a checkpoint of the version there is, or of the next
        self._checkpointed = 0  # the event that says so of the last one
        self._unwritten = (
            version,
            "",
        )  # the last version whose checkpoint was not written, and why
        self.lags: Counter[int] = Counter()  # tokens handed to a loss, by lag
        self._again: set[tuple[int, int]] = (
            set()
        )  # of those, the ones that the ledger has counted before
        self._replayed = 0  # tokens trained again in the last step
        self._anchored: dict[
            int, int
        ] = {}  # rollouts that the trainer has scored, and of how many tokens
        self.metrics: dict[str, float] = {}  # of the last step
        self.alarms: tuple[Alarm, ...] = ()  # of the last step
        self.alarmed: dict[str, Alarmed] = {}  # of all steps
        self.progress = self.stepped = trio.current_time()  # of anything, and of a step

    @property
    def finished(self) -> bool:
        """Whether the trainer has made the last version."""
        return self.version >= self._config.train.steps

    @property
    def closing(self) -> bool:
        """Whether the trainer was asked for a version that it has not made yet."""
        return self._step > self.version

    @property
    def useful(self) -> bool:
        """Whether any step can still take anything."""
        left = self._config.train.steps - self._step
        return left > 1 or (left == 1 and not self._selection.full)

    @property
    def wanted(self) -> int:
        """How many groups may start now: as many as admission allows, and never more than the steps
        to come can still take."""
        steps = self._config.train.steps - self._step
        return min(self._selection.may_start, self._selection.missing(steps))

    @property
    def filtered(self) -> int:
        """Units that had no signal since the last that had."""
        return self._selection.judge.filtered // self._selection.unit.per_group

    @property
    def unsaved(self) -> str:
        """Why the checkpoint of the version there is was not written; empty where it was, or nobody
        has tried."""
        version, why = self._unwritten
        return why if version == self.version else ""

    @property
    def starved(self) -> bool:
        """Whether no group is to come, none was taken for the open step, and nothing is under
        way."""
        return self._dry and not self._selection.units and not self.closing

    def resting(self, published: int | None) -> bool:
        """Whether generation stands still until the step that has its groups is published
        (`rollout.mode = batch`)."""
        return self._config.rollout.mode == "batch" and (self.closing or published != self.version)

    @property
    def redoing(self) -> bool:
        """Whether the trainer has not yet made again what a crash undid: engines wait for it."""
        return self._store.experience.prescribed is not None and not self.finished

    @property
    def _dry(self) -> bool:
        return self._generation.exhausted and not self._selection.unit.untaken

    # ---------------------------------------------------------------------------------------- feed

    def feed(self, published: int | None) -> None:
        """Give the trainer what it has room for. `published` is the version that the engines
        serve."""
        if self._due and not self.closing:
            self.save()
        if self._step >= self._config.train.steps:
            return
        while len(self._outstanding) < OUTSTANDING and (units := self._next()):
            self._take(units)
        full = self._selection.full or (self._selection.units > 0 and self._dry) or self._redone
        if full and self._step == self.version and published in (self.version, None):
            self._close()

    def _next(self) -> list[list[Rollout]]:
        """What the trainer is given next: what it had before a crash, and then what is chosen."""
        if (prescribed := self._store.experience.prescribed) is None:
            return [] if self._redone else self._selection.next(self._step, self._tokens)
        step, rollouts = prescribed
        return (
            self._selection.unit.of(rollouts)
            if step == self._step and not self._selection.full
            else []
        )

    @property
    def _redone(self) -> bool:
        """Whether the open step was closed before a crash, and has all that it had then."""
        prescribed = self._store.experience.prescribed
        return self._step < self._store.experience.closed and (
            prescribed is None or prescribed[0] > self._step
        )

    def _take(self, units: list[list[Rollout]]) -> None:
        """Send these to the trainer as micro-batches."""
        self._selection.take(units)
        taken = [rollout for unit in units for rollout in unit]
        self._store.record(Taken(self._step, [rollout.id for rollout in taken]))
        groups = {rollout.group: self._store.experience.groups[rollout.group] for rollout in taken}
        whole = advantage_of(self._config.train).whole_step
        for batch in micro_batches(units, self._tokens, self._config.train.micro_tokens):
            named = groups if whole else {rollout.group: groups[rollout.group] for rollout in batch}
            rewards = {number: group.rewards for number, group in named.items()}
            parts = {number: group.parts for number, group in named.items() if any(group.parts)}
            self._send([self._piece(rollout) for rollout in batch], rewards, parts)

    def _send(
        self,
        pieces: list[PackedRollout],
        rewards: dict[int, list[float]],
        parts: dict[int, list[list[float]]],
    ) -> None:
        most, ids, behaviour, mask, lags = (
            max_lag(self._config),
            bytearray(),
            bytearray(),
            bytearray(),
            Counter[int](),
        )
        for piece in pieces:
            ids += piece.prompt
            ids += piece.ids
            behaviour += piece.behaviour
            mask += fresh_mask(piece.sample.spans, self._step, most)
            lags.update(
                {
                    lag: n
                    for lag, n in tokens_by_lag(piece.sample.spans, self._step).items()
                    if lag <= most
                }
            )
        self._outstanding[self._step, self._index] = lags
        message = MicroBatch(
            self._step, self._index, [piece.sample for piece in pieces], rewards, parts
        )
        self.trainer.queue(message, bytes(ids), bytes(behaviour), bytes(mask))
        self._index += 1

    def _replay(self) -> None:
        """Train groups of earlier steps once more, beside those of the open one."""
        staleness, replay_buffer = self._config.staleness, self._store.experience.replay_buffer
        candidates = [
            Candidate(number, kept.oldest, kept.rewards)
            for number, kept in replay_buffer.kept.items()
        ]
        chosen = [
            replay_buffer.kept[n]
            for n in replayed(
                candidates, self._step, staleness.max_lag, self._config.train.replay_groups
            )
        ]
        if not chosen:
            return
        self._store.record(Replayed(self._step, [kept.group for kept in chosen]))
        groups = [[_again(kept, place) for place in range(len(kept.members))] for kept in chosen]
        rewards = {kept.group: list(kept.rewards) for kept in chosen}
        parts = {kept.group: [member.parts for member in kept.members] for kept in chosen}
        for batch in micro_batches(
            groups,
            lambda piece: piece.sample.prompt_tokens + piece.sample.response_tokens,
            self._config.train.micro_tokens,
        ):
            named = (
                rewards
                if advantage_of(self._config.train).whole_step
                else {piece.sample.group for piece in batch}
            )
            self._again.add((self._step, self._index))
            self._send(
                batch, {n: rewards[n] for n in named}, {n: parts[n] for n in named if any(parts[n])}
            )

    def _piece(self, rollout: Rollout) -> PackedRollout:
        prompt = self._store.experience.groups[rollout.group].prompt
        return PackedRollout(prompt, rollout.ids, rollout.behaviour, self._sample(rollout))

    def _sample(self, rollout: Rollout) -> Sample:
        group = self._store.experience.groups[rollout.group]
        alone = self._config.train.unit == "rollout"
        scored = isinstance(rollout.verdict, Scored)
        return Sample(
            rollout=rollout.id,
            group=group.id,
            prompt_tokens=group.prompt_tokens,
            response_tokens=rollout.tokens,
            reward=rollout.verdict.reward if isinstance(rollout.verdict, Scored) else math.nan,
            spans=list(rollout.spans),
            baseline=baseline(group, rollout, self._config)
            if alone and rollout.status is RolloutStatus.TAKEN
            else None,
            member=group.scored.index(rollout) if scored else None,
        )

    def _tokens(self, rollout: Rollout) -> int:
        return self._store.experience.groups[rollout.group].prompt_tokens + rollout.tokens

    def _anchor(self) -> None:
        """Have the trainer score, while it holds the version, what was sampled under it, and late
        under those before."""
        untaken = [
            rollout
            for rollout in self._store.experience.rollouts.values()
            if self._to_train(rollout)
        ]
        self._anchored = {rollout.id: self._anchored.get(rollout.id, 0) for rollout in untaken}
        due = [
            rollout for rollout in untaken if self._scorable(rollout) > self._anchored[rollout.id]
        ]
        sampled = self._sampled
        live = [
            *self._anchored,
            *(
                member.rollout
                for kept in self._store.experience.replay_buffer.kept.values()
                for member in kept.members
            ),
        ]
        batches = micro_batches(
            ([rollout] for rollout in due), self._tokens, self._config.train.micro_tokens
        )
        for batch in batches or [[]]:
            ids = b"".join(
                self._store.experience.groups[rollout.group].prompt + rollout.ids
                for rollout in batch
            )
            samples = [self._sample(rollout) for rollout in batch]
            self.trainer.queue(ScoreProximal(self._step, samples, live, sampled), ids)
            self._anchored |= {rollout.id: self._scorable(rollout) for rollout in batch}

    @property
    def _sampled(self) -> int:
        """The oldest version that more tokens may come of: engines may still be at the one
        published last, and where rollouts end under the one that they began with, at that of each.
        """
        experience = self._store.experience
        published = experience.version or 0
        if self._config.staleness.finish_on == "mixed":
            return published
        going = [
            r
            for r in experience.rollouts.values()
            if r.status in (RolloutStatus.WAITING, RolloutStatus.LEASED) and self._to_train(r)
        ]
        began = [
            r.spans[0].version if r.spans else experience.groups[r.group].admitted_version
            for r in going
        ]
        return min([published, *began])

    def _scorable(self, rollout: Rollout) -> int:
        """Tokens that are of no later version than the open step begins from: after a crash there
        may be others, whose turn comes again."""
        return sum(span.end - span.start for span in rollout.spans if span.version <= self._step)

    def _to_train(self, rollout: Rollout) -> bool:
        over = rollout.status is RolloutStatus.TAKEN and not self._config.train.replay_groups
        return not over and self._store.experience.groups[rollout.group].split == "train"

    def _close(self) -> None:
        if self._config.train.replay_groups:
            self._replay()
        if self._config.staleness.proximal == "boundary":
            self._anchor()
        self.trainer.queue(CloseStep(self._step))
        self._step += 1
        self._index = 0
        self._selection.close()

    # ------------------------------------------------------------------------------------- answers

    def on_consumed(self, message: Consumed) -> None:
        """The trainer accumulated a micro-batch. Raises Refused for one that it does not have."""
        if (message.step, message.index) not in self._outstanding:
            raise ImpossibleEvent(
                f"micro-batch {message.index} of step {message.step} is not with the trainer"
            )
        lags = self._outstanding.pop((message.step, message.index))
        if (message.step, message.index) in self._again:
            self._again.remove((message.step, message.index))
            self._replayed += sum(count.trained for count in message.counts)
        else:
            self._consumed[message.step].append((message.counts, lags))
        self.progress = trio.current_time()

    def on_stepped(self, message: Stepped) -> None:
        """A new version exists: what its step consumed is trained. Raises Refused for a version
        that was not asked for, or where the trainer does not account for the tokens that it was
        given."""
        if not self.closing or message.version != self._step:
            raise ImpossibleEvent(
                f"version {message.version} was not asked for: version {self.version} is the "
                f"last, and step {self._step} is open"
            )
        trained, discarded = 0, Counter[str]()
        if self._config.train.replay_groups:
            self._shelve(message.version - 1)
        for counts, lags in self._consumed.pop(message.version - 1, []):
            for count in counts:
                self._store.record(Trained(count.rollout, count.trained, count.discarded))
                trained += count.trained
                discarded.update(count.discarded)
            self.lags.update(lags)
        self._alarm(
            alarms(message.metrics, trained, discarded, self._config.staleness), message.version
        )
        self.version = message.version
        rewards = self._selection.judge.rewards
        self.metrics = message.metrics | ({"reward": float(np.mean(rewards))} if rewards else {})
        if self._config.train.replay_groups:
            self.metrics["replayed_tokens"] = float(self._replayed)
        rewards.clear()
        self._replayed = 0
        self.progress = self.stepped = trio.current_time()
        every = self._config.train.checkpoint_every
        self._due |= self.finished or bool(every and self.version % every == 0)

    def _shelve(self, step: int) -> None:
        """Keep the groups of a step that is over, and that the next one may train again."""
        rollouts = self._store.experience.rollouts
        numbers = dict.fromkeys(
            rollouts[count.rollout].group
            for counts, _ in self._consumed.get(step, [])
            for count in counts
        )
        for group in (self._store.experience.groups[number] for number in numbers):
            candidate = Candidate(group.id, group.oldest, tuple(group.rewards))
            if useful(candidate, step + 1, self._config.staleness.max_lag):
                self._store.record(
                    StoredForReplay(group.id, candidate.oldest + self._config.staleness.max_lag)
                )

    def _alarm(self, raised: tuple[Alarm, ...], version: int) -> None:
        before = {alarm.name for alarm in self.alarms}
        for alarm in raised:
            if alarm.name not in before:
                logger.warning(
                    "alarm %s in the step that made version %d: %s",
                    alarm.name,
                    version,
                    alarm.sentence,
                )
            steps = self.alarmed[alarm.name].steps if alarm.name in self.alarmed else 0
            self.alarmed[alarm.name] = Alarmed(steps + 1, alarm.sentence)
        self.alarms = raised

    def save(self) -> bool:
        """Have the version there is saved, once. What the open step has taken is not in it: a
        resumed run takes it again. False where that has to wait: of two checkpoints the journal
        must know one, or a crash leaves none to go on from."""
        assert not self.closing, (
            "the trainer may make the next version before it saves, and the cursor would be of "
            "this one"
        )
        if self._saving != self.version and self.saved != self.version:
            if self._store.durable < self._checkpointed:
                return False
            self._saving, self._unwritten = self.version, (self.version, "")
            self._store.keep(self.version)
            self.trainer.queue(Save(self._store.cursor))
        self._due = False
        return True

    def on_saved(self, message: Saved) -> None:
        """A checkpoint is complete, and the journal may forget what lies before the one before it;
        or it could not be written. Raises Refused for one that was not asked for."""
        if message.version != self._saving or message.version == self.saved:
            raise ImpossibleEvent(f"a checkpoint of version {message.version} was not asked for")
        self.progress = trio.current_time()
        if message.error:
            logger.warning(
                "the checkpoint of version %d was not written: %s", message.version, message.error
            )
            self._unwritten, self._saving = (message.version, message.error), self.saved
            return
        self._store.record(Checkpointed(message.version, message.path))
        self._checkpointed = self._store.cursor
        self._store.compact(self.saved)
        self.saved = message.version
