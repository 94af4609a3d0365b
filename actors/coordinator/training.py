"""Finished groups to optimizer steps. Invariant: a token over `max_lag` enters a loss only where `on_stale` says `train`.

    ready groups, the oldest first → those that cannot be trained are dropped by name → micro-batches, at most OUTSTANDING with the trainer
    → with its `batch_groups` taken the step is closed, once the version it starts from is published → Stepped: a version more

The micro-batches of a step are trained while its other groups are still being generated, and those of the next while the weights travel. A
step is not closed before the version it starts from has reached the engines, so what the trainer holds is what it publishes.

A rollout is booked as trained when the optimizer step that it belongs to was taken, not before.

After a crash the steps since the checkpoint are taken again, each exactly as it was (`asyncrl/experience/recovery.py`). Until the trainer
has made the last of those versions nothing is published.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter, defaultdict

import numpy as np
import trio

from actors.coordinator.book import Book
from actors.coordinator.generation import Generation
from actors.coordinator.peers import Peer
from asyncrl.config import Config
from asyncrl.experience.events import Checkpointed, Dropped, Taken, Trained
from asyncrl.experience.packing import micro_batches
from asyncrl.experience.rollout import Group, Refused, Rollout
from asyncrl.messages import CloseStep, Consumed, MicroBatch, Sample, Save, Saved, Scored, Stepped, TokenCount
from staleness.lag import fresh_mask, rollout_lag, tokens_by_lag

OUTSTANDING = 2
"""Micro-batches that may be with the trainer: the one it works on, and the next, so that it never asks."""

logger = logging.getLogger(__name__)


class Training:
    """The steps of a run, from the trainer's first version on."""

    def __init__(self, book: Book, generation: Generation, trainer: Peer, version: int, config: Config) -> None:
        self._book = book
        self._generation = generation
        self.trainer = trainer
        self._config = config
        self.version = version  # of the trainer's weights
        self._step = version  # the open step: `version`, or one more while the optimizer step before it is under way
        self._groups = 0  # taken for the open step
        self._index = 0  # micro-batches sent for the open step
        self._outstanding: dict[tuple[int, int], Counter[int]] = {}  # micro-batches with the trainer: their tokens by lag
        self._consumed: defaultdict[int, list[tuple[list[TokenCount], Counter[int]]]] = defaultdict(list)  # by step
        self.saved = self._saving = version  # the last checkpoint that is complete, and that was asked for
        self._due = False  # a checkpoint of the version there is, or of the next
        self._checkpointed = 0  # the event that says so of the last one
        self._unwritten = (version, "")  # the last version whose checkpoint was not written, and why
        self.filtered = 0  # groups dropped without a signal since the last that was trained
        self.lags: Counter[int] = Counter()  # tokens handed to a loss, by lag
        self.rewards: list[float] = []  # of the groups seen since the last step, filtered ones too
        self.metrics: dict[str, float] = {}  # of the last step
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
    def useful(self) -> int:
        """How many groups the remaining steps can still take."""
        return (self._config.train.steps - self._step) * self._config.train.batch_groups - self._groups

    @property
    def unsaved(self) -> str:
        """Why the checkpoint of the version there is was not written; empty where it was, or nobody has tried."""
        version, why = self._unwritten
        return why if version == self.version else ""

    @property
    def starved(self) -> bool:
        """Whether no group is to come, none was taken for the open step, and nothing is under way."""
        return self._dry and not self._groups and not self.closing

    @property
    def redoing(self) -> bool:
        """Whether the trainer has not yet made again what a crash undid: engines wait for it."""
        return self._book.experience.prescribed is not None and not self.finished

    @property
    def _dry(self) -> bool:
        return self._generation.exhausted and not self._book.experience.groups_untaken

    # ----------------------------------------------------------------------------------------------------------- feed

    def feed(self, published: int | None) -> None:
        """Give the trainer what it has room for. `published` is the version that the engines serve."""
        if self._due and not self.closing:
            self.save()
        if self._step >= self._config.train.steps:
            return
        batch_groups = self._config.train.batch_groups
        while self._groups < batch_groups and len(self._outstanding) < OUTSTANDING:
            if not (groups := self._next(batch_groups - self._groups)):
                break
            self._take(groups)
        full = self._groups == batch_groups or (self._groups > 0 and self._dry)
        if full and self._step == self.version and published in (self.version, None):
            self._close()

    def _next(self, most: int) -> list[Group]:
        """What the trainer is given next: what it had before a crash, and then the oldest; where nothing may lag, in turn."""
        if (prescribed := self._book.experience.prescribed) is None:
            return self._oldest(most) if self._max_lag else self._in_turn(most)
        step, groups = prescribed
        return groups if step == self._step else []

    def _in_turn(self, most: int) -> list[Group]:
        """As `_oldest`, but in the order of admission and never less than fits: sums of floats depend on what is added when, so this makes
        the weights a function of the seed, whoever is complete first and whatever is killed. Waiting for an older group costs nothing here:
        the step needs them all."""
        room, chosen = self._config.train.micro_tokens, list[Group]()
        for group in [group for group in self._book.experience.groups.values() if group.purpose == "train" and group.step is None]:
            if not group.complete:
                return []
            if self._unusable(group):
                continue
            room -= sum(map(self._tokens, group.scored))
            if chosen and room < 0:
                return chosen
            chosen.append(group)
            if len(chosen) == most:
                return chosen
        return chosen if self._generation.exhausted else []

    def _oldest(self, most: int) -> list[Group]:
        """The oldest groups that can be trained and fit one micro-batch; a group that does not fit one comes alone."""
        room, chosen = self._config.train.micro_tokens, list[Group]()
        for group in self._book.experience.ready():
            if self._unusable(group):
                continue
            room -= sum(map(self._tokens, group.scored))
            if chosen and room < 0:
                break
            chosen.append(group)
            if len(chosen) == most:
                break
        return chosen

    def _unusable(self, group: Group) -> bool:
        """Drop a finished group that cannot be trained, under its reason."""
        staleness, rollout = self._config.staleness, self._config.rollout
        lags = [rollout_lag(member.spans, self._step) for member in group.scored]
        stale = [lag > self._max_lag for lag in lags]
        if len(group.rewards) < rollout.k_min:
            reason = "k_min"
            self.filtered += 1
        elif rollout.filter == "zero_variance" and min(group.rewards) == max(group.rewards):
            reason = "zero_variance"
            self.filtered += 1
        elif any(stale) and staleness.on_stale in ("recycle", "drop"):
            reason = "stale"
        else:
            return False
        self.rewards += group.rewards
        self._book.record(Dropped(group.id, reason, again=reason == "stale" and staleness.on_stale == "recycle"))
        return True

    def _take(self, groups: list[Group]) -> None:
        """Send these groups to the trainer as micro-batches."""
        self._book.record(Taken(self._step, [member.id for group in groups for member in group.scored]))
        self._groups += len(groups)
        self.filtered = 0
        rewards = {group.id: group.rewards for group in groups}
        for group in groups:
            self.rewards += group.rewards
        budget = self._config.train.micro_tokens
        for batch in micro_batches((group.scored for group in groups), self._tokens, budget):
            self._send(batch, {member.group: rewards[member.group] for member in batch})

    def _send(self, batch: list[Rollout], rewards: dict[int, list[float]]) -> None:
        groups, max_lag = self._book.experience.groups, self._max_lag
        samples, ids, behaviour, mask, lags = [], bytearray(), bytearray(), bytearray(), Counter[int]()
        for rollout in batch:
            group = groups[rollout.group]
            assert isinstance(rollout.verdict, Scored)
            samples.append(Sample(rollout.id, group.id, group.prompt_tokens, rollout.tokens, rollout.verdict.reward, list(rollout.spans)))
            ids += group.prompt
            ids += rollout.ids
            behaviour += rollout.behaviour
            mask += fresh_mask(rollout.spans, self._step, max_lag)
            lags.update({lag: n for lag, n in tokens_by_lag(rollout.spans, self._step).items() if lag <= max_lag})
        self._outstanding[self._step, self._index] = lags
        self.trainer.send(MicroBatch(self._step, self._index, samples, rewards), bytes(ids), bytes(behaviour), bytes(mask))
        self._index += 1

    @property
    def _max_lag(self) -> int:
        """The oldest a token may be to enter a loss."""
        staleness = self._config.staleness
        return sys.maxsize if staleness.on_stale == "train" else staleness.max_lag

    def _tokens(self, rollout: Rollout) -> int:
        return self._book.experience.groups[rollout.group].prompt_tokens + rollout.tokens

    def _close(self) -> None:
        self.trainer.send(CloseStep(self._step))
        self._step += 1
        self._groups = self._index = 0

    # -------------------------------------------------------------------------------------------------------- answers

    def on_consumed(self, message: Consumed) -> None:
        """The trainer accumulated a micro-batch. Raises Refused for one that it does not have."""
        if (message.step, message.index) not in self._outstanding:
            raise Refused(f"micro-batch {message.index} of step {message.step} is not with the trainer")
        lags = self._outstanding.pop((message.step, message.index))
        self._consumed[message.step].append((message.counts, lags))
        self.progress = trio.current_time()

    def on_stepped(self, message: Stepped) -> None:
        """A new version exists: what its step consumed is trained. Raises Refused for a version that was not asked for, or where the
        trainer does not account for the tokens that it was given."""
        if not self.closing or message.version != self._step:
            raise Refused(f"version {message.version} was not asked for: version {self.version} is the last, and step {self._step} is open")
        for counts, lags in self._consumed.pop(message.version - 1, []):
            for count in counts:
                self._book.record(Trained(count.rollout, count.trained, count.discarded))
            self.lags.update(lags)
        self.version = message.version
        self.metrics = message.metrics | ({"reward": float(np.mean(self.rewards))} if self.rewards else {})
        self.rewards = []
        self.progress = self.stepped = trio.current_time()
        every = self._config.train.checkpoint_every
        self._due |= self.finished or bool(every and self.version % every == 0)

    def save(self) -> bool:
        """Have the version there is saved, once. What the open step has taken is not in it: a resumed run takes it again. False where that
        has to wait: of two checkpoints the journal must know one, or a crash leaves none to go on from."""
        assert not self.closing, "the trainer may make the next version before it saves, and the cursor would be of this one"
        if self._saving != self.version and self.saved != self.version:
            if self._book.durable < self._checkpointed:
                return False
            self._saving, self._unwritten = self.version, (self.version, "")
            self._book.keep(self.version)
            self.trainer.send(Save(self._book.cursor))
        self._due = False
        return True

    def on_saved(self, message: Saved) -> None:
        """A checkpoint is complete, and the journal may forget what lies before the one before it; or it could not be written. Raises
        Refused for one that was not asked for."""
        if message.version != self._saving or message.version == self.saved:
            raise Refused(f"a checkpoint of version {message.version} was not asked for")
        self.progress = trio.current_time()
        if message.error:
            logger.warning("the checkpoint of version %d was not written: %s", message.version, message.error)
            self._unwritten, self._saving = (message.version, message.error), self.saved
            return
        self._book.record(Checkpointed(message.version, message.path))
        self._checkpointed = self._book.cursor
        self._book.compact(self.saved)
        self.saved = message.version
