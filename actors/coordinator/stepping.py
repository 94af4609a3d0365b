"""Turns finished work into optimizer steps.

Invariant: a step is closed with all that it takes, and only from a version whose publication is
committed.

    units that are chosen (batching.py)
      → micro-batches, and then other commands, of which few are with the trainer at a time
        (trainer_commands.py)
      → all are taken, and the version that the step starts from is committed: the step is closed
      → Stepped: there is a version more

The trainer works on a step while other groups of that step are still being generated, and on the
next step while weights travel. A publication takes the weights as the trainer holds them. So a step
is closed only after the publication of its first version is committed.

A rollout counts as trained when the optimizer step that it belongs to is done, not before.

After a crash the steps since the checkpoint are taken again, each exactly as it was
(`asyncrl/experience/recovery.py`). Nothing is published until the trainer has made the last of
those versions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import trio

from asyncrl.actors.coordinator.admission import Admission
from asyncrl.actors.coordinator.batching import Batching
from asyncrl.actors.coordinator.checkpointing import Checkpointing
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.lent_engines import LentEngines
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.proximal_scoring import ProximalScoring
from asyncrl.actors.coordinator.sequences import (
    SequenceToTrain,
    by_rollout,
    of_replayed,
    of_rollout,
    placed,
)
from asyncrl.actors.coordinator.step_alarms import StepAlarms
from asyncrl.actors.coordinator.trainer_commands import OUTSTANDING, TrainerCommands
from asyncrl.algorithms.advantages.credit import compared
from asyncrl.algorithms.selection.replay import Candidate, replayed, useful
from asyncrl.config import Config
from asyncrl.config.flow import max_lag
from asyncrl.config.losses import advantage_of, credit_of
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.config.selection_names import REPLAYS
from asyncrl.config.strategies import blamed
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.events import Replayed, StoredForReplay, Taken, Trained
from asyncrl.experience.group import Group
from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.micro_batches import micro_batches
from asyncrl.experience.replay_buffer import ReplayGroup
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.training_message import training_message
from asyncrl.explain.curve import Curve
from asyncrl.explain.response_sums import ResponseSums
from asyncrl.messages import (
    CloseStep,
    Consumed,
    MicroBatch,
    Saved,
    ScoredProximal,
    ScoreProximal,
    Stepped,
    TokenCount,
)
from asyncrl.runtime.processes.standstill import RunClock


class StepAccount(NamedTuple):
    """Tokens of one step: the number trained, those discarded by reason, and those that it was
    given by lag."""

    trained: int
    discarded: Counter[str]
    lags: Counter[int]


class StepSources(NamedTuple):
    """Parts that a step looks at: `admission` knows if a prompt is left, `leases` which versions
    are still sampled from, `lent` if a step is taken at once."""

    admission: Admission
    leases: LeaseTable
    lent: LentEngines


class Stepping:
    """The steps of a run, from the trainer's first version on."""

    def __init__(
        self,
        store: EventStore,
        config: Config,
        clock: RunClock,
        sources: StepSources,
        trainer: Peer,
        version: int,
    ) -> None:
        """`version` is that of the trainer's weights."""
        self._store = store
        self._clock = clock
        self._admission, self._lent = sources.admission, sources.lent
        self.trainer = trainer
        self._commands = TrainerCommands(trainer)
        self._config = config
        self._whole_step = advantage_of(config.train).whole_step  # advantages compare all groups
        self._credit = credit_of(config.train)
        self._replay_rule = REPLAYS.find(config.train.replay)()
        self.version = self.began_with = version
        # the open step: `version`, or one more while the optimizer step before it is under way
        self._step = version
        self._batching = Batching(store, config, sources.admission)
        self._index = 0  # micro-batches given for the open step
        # (step, index) of each micro-batch that is not consumed, and its tokens by lag
        self._outstanding: dict[tuple[int, int], Counter[int]] = {}
        # what the trainer said of each micro-batch of a step, and the micro-batch's tokens by lag
        self._consumed: defaultdict[int, list[tuple[list[TokenCount], Counter[int]]]] = defaultdict(
            list
        )
        self.checkpoints = Checkpointing(store, self._commands, version, config.supervision.stall_s)
        self._save_due = False  # the present version, or the next one
        self._proximal = ProximalScoring(store, self._commands, sources.leases, config)
        self.lags: Counter[int] = Counter()  # tokens handed to a loss, by lag
        # micro-batches not consumed that train again what the ledger has counted before
        self._replays: set[tuple[int, int]] = set()
        self._again: set[int] = set()  # rollouts of the open step that are trained again
        self._replayed = 0  # tokens trained again in the last step
        self.account = StepAccount(0, Counter(), Counter())  # of the last step
        self.metrics: dict[str, float] = {}  # of the last step
        self._responses = ResponseSums()  # of what was looked at for the step closed last
        self._by_task: dict[str, float] = {}  # its rewards, by task
        self.alarms = StepAlarms(config)
        self.last_activity = clock.now()
        """Seconds on the run's clock when the trainer answered last."""
        self.last_step = trio.current_time()
        """Seconds on trio's clock when the trainer made a step last."""

    @property
    def finished(self) -> bool:
        """True if the trainer has made the last version."""
        return self.version >= self._config.train.steps

    @property
    def closing(self) -> bool:
        """True if the trainer was asked for a version that it has not made yet."""
        return self._step > self.version

    @property
    def idle(self) -> bool:
        """True if the trainer has nothing to do, and waits for what is being generated."""
        return self._commands.none and not self.redoing and self._step < self._config.train.steps

    @property
    def takes_more(self) -> bool:
        """True if the open step or a later one can still take anything."""
        left = self._config.train.steps - self._step
        return left > 1 or (left == 1 and not self._batching.full)

    @property
    def groups_to_admit(self) -> int:
        """Groups that may start now: as many as admission allows, and never more than the steps to
        come can still take; none while the disk takes no checkpoint. 0 or less: none."""
        if self.checkpoints.holds:
            return 0
        steps = self._config.train.steps - self._step
        return min(self._batching.may_start, self._batching.missing(steps))

    @property
    def filtered(self) -> int:
        """Groups' worth of units without a signal, since the last unit that had one."""
        return self._batching.filtered

    @property
    def saved(self) -> int:
        """The last version whose checkpoint is complete."""
        return self.checkpoints.saved

    @property
    def models_left(self) -> bool:
        """True if the models for use elsewhere are written, of the current version."""
        return self.checkpoints.left == self.version

    @property
    def saving(self) -> int | None:
        """The version whose checkpoint is being written, or is about to be; None: there is none."""
        return self.checkpoints.under_way

    @property
    def unsaved(self) -> str:
        """The reason why the checkpoint of the current version was not written. Empty if it was
        written, or was not attempted."""
        return self.checkpoints.unsaved(self.version)

    @property
    def starved(self) -> bool:
        """True if no group is to come, the open step has taken none, and no step is under way."""
        return self._no_more_work and not self._batching.units and not self.closing

    def resting(self, committed: int | None) -> bool:
        """True if generation is paused until the step with its groups is published (`rollout.mode =
        batch`). `committed` is the version that was committed last."""
        return self._config.rollout.mode == "batch" and (self.closing or committed != self.version)

    @property
    def redoing(self) -> bool:
        """True while the trainer has not made again what a crash undid. Engines wait for it."""
        return self._store.experience.prescribed is not None and not self.finished

    @property
    def _no_more_work(self) -> bool:
        return self._admission.exhausted and not self._batching.untaken

    # ---------------------------------------------------------------------------------------- feed

    def feed(self, committed: int | None, served: int | None) -> None:
        """Give the trainer what it has room for, and close the step that is full.

        `committed` is the version whose publication was decided last, `served` the last one that
        every engine serves. Both are None before the first publication.
        """
        due = self._save_due or self.checkpoints.due_again(self._clock.now())
        if due and not self.closing:
            self.save()
        if self._step >= self._config.train.steps:
            return
        while len(self._outstanding) < OUTSTANDING and (units := self._next()):
            self._take(units)
        full = (
            self._batching.full or (self._batching.units > 0 and self._no_more_work) or self._redone
        )
        if full and self._step == self.version and self._may_close(committed):
            self._close(served)

    def _may_close(self, committed: int | None) -> bool:
        """True if the version that the open step starts from is committed. What a crash undid is
        made again before anything is published."""
        experience = self._store.experience
        redo = experience.prescribed is not None or self._step < experience.closed
        return committed == self.version or (committed is None and redo)

    def _next(self) -> list[list[Rollout]]:
        """The units that the trainer is given next: those that it had before a crash, then those
        that are chosen."""
        if (prescribed := self._store.experience.prescribed) is None:
            if self._redone:
                return []
            whole, busy = self._lent.whole_step, bool(self._outstanding)
            return self._batching.next(self._step, self._tokens, whole=whole, busy=busy)
        step, rollouts = prescribed
        return self._batching.retake(rollouts) if step == self._step else []

    @property
    def _redone(self) -> bool:
        """True if the open step was closed before a crash, and has all that it had then."""
        prescribed = self._store.experience.prescribed
        return self._step < self._store.experience.closed and (
            prescribed is None or prescribed[0] > self._step
        )

    def _take(self, units: list[list[Rollout]]) -> None:
        """Send these to the trainer as micro-batches."""
        left_out = self._batching.take(units)
        taken = [rollout for unit in units for rollout in unit]
        self._store.record(Taken(self._step, [r.id for r in taken], [r.id for r in left_out]))
        groups = {rollout.group: self._store.experience.groups[rollout.group] for rollout in taken}
        facts = {number: self._labelled(group.facts) for number, group in groups.items()}
        for batch in micro_batches(units, self._tokens, micro_tokens(self._config)):
            sequences = [
                sequence
                for rollout in batch
                for sequence in of_rollout(groups[rollout.group], rollout, self._config)
            ]
            self._send(sequences, self._named(facts, [rollout.group for rollout in batch]))

    def _replay(self) -> None:
        """Train groups of earlier steps once more, beside those of the open one."""
        chosen = self._chosen_for_replay()
        if not chosen:
            return
        self._store.record(Replayed(self._step, [kept.group for kept in chosen]))
        groups = [
            [of_replayed(kept, member, self._config) for member in range(len(kept.members))]
            for kept in chosen
        ]
        facts = {kept.group: self._labelled(kept.facts) for kept in chosen}
        for members in micro_batches(
            groups,
            lambda member: sum(sequence.tokens for sequence in member),
            micro_tokens(self._config),
        ):
            batch = [sequence for member in members for sequence in member]
            self._replays.add((self._step, self._index))
            self._again |= {sequence.sample.rollout for sequence in batch}
            self._send(batch, self._named(facts, [sequence.sample.group for sequence in batch]))

    def _chosen_for_replay(self) -> list[ReplayGroup]:
        """The kept groups that the open step trains once more."""
        kept = self._store.experience.replay_buffer.kept
        candidates = [
            Candidate(number, group.oldest, self._compared(group)) for number, group in kept.items()
        ]
        with blamed("replay", self._config.train.replay):
            chosen = replayed(
                self._replay_rule,
                candidates,
                self._step,
                self._config.staleness.max_lag,
                self._config.train.replay_groups,
            )
        return [kept[number] for number in chosen]

    def _named(
        self, facts: Mapping[int, GroupFacts], groups: Iterable[int]
    ) -> Mapping[int, GroupFacts]:
        """The facts that go with a micro-batch of members of these `groups`: theirs, or all where
        advantages compare the whole step."""
        return facts if self._whole_step else {number: facts[number] for number in groups}

    def _labelled(self, facts: GroupFacts) -> GroupFacts:
        """The facts of a group, with the label of its prompt's task, and the chances of its members
        where they weigh."""
        prompt = facts.prompt
        label = self._admission.label("train", prompt.index)
        drawn = facts.drawn if self._config.rollout.prune_weight == "inverse" else None
        return facts._replace(prompt=msgspec.structs.replace(prompt, label=label), drawn=drawn)

    def _send(self, batch: list[SequenceToTrain], facts: Mapping[int, GroupFacts]) -> None:
        """Send a micro-batch of the open step, with the facts of the groups that it names."""
        message, buffers, trainable = training_message(
            self._step,
            self._index,
            batch,
            facts,
            max_lag(self._config),
            mask_truncated=self._config.rollout.truncated == "mask",
            whole_step=self._whole_step,
            max_age=self._config.foreign.max_age,
        )
        self._outstanding[self._step, self._index] = trainable
        self._commands.queue(message, *buffers)
        self._index += 1

    def _tokens(self, rollout: Rollout) -> int:
        return self._store.experience.groups[rollout.group].sequence_tokens(rollout)

    def _close(self, served: int | None) -> None:
        if self._config.train.replay_groups:
            self._replay()
        if self._config.staleness.proximal == "boundary":
            self._proximal.score(self._step, served)
        self._commands.queue(CloseStep(self._step))
        self._step += 1
        self._index = 0
        # what is looked at from now on is of the next step
        self._responses, self._by_task = (
            self._batching.responses(),
            self._batching.rewards_by_task(),
        )
        self._batching.close()

    # ------------------------------------------------------------------------------------- answers

    def on_scored_proximal(self, message: ScoredProximal) -> None:
        """The trainer keeps scores. Raises ImpossibleEvent for those that it was not asked for."""
        self._commands.answered(ScoreProximal)
        self.last_activity = self._clock.now()

    def on_consumed(self, message: Consumed) -> None:
        """The trainer accumulated a micro-batch. Raises ImpossibleEvent for one that it does not
        have."""
        batch = self._commands.answered(MicroBatch)
        if (message.step, message.index) != (batch.step, batch.index):
            raise ImpossibleEvent(
                f"micro-batch {message.index} of step {message.step} is not the trainer's next"
            )
        lags = self._outstanding.pop((message.step, message.index))
        if (message.step, message.index) in self._replays:
            self._replays.remove((message.step, message.index))
            self._replayed += sum(count.trained for count in message.counts)
        else:
            self._consumed[message.step].append((message.counts, lags))
        self.last_activity = self._clock.now()

    def on_stepped(self, message: Stepped, curve: Curve) -> None:
        """A new version exists: the work that its step consumed is trained. `curve` is that of the
        run before this step. Raises ImpossibleEvent for a version that was not asked for, or if the
        trainer does not account for the tokens that it was given."""
        if not self.closing or message.version != self._step:
            raise ImpossibleEvent(
                f"version {message.version} was not asked for: version {self.version} is the "
                f"last, and step {self._step} is open"
            )
        self._commands.answered(CloseStep)
        own = [count for count in message.counts if count.rollout not in self._again]
        self._consumed[message.version - 1].append((own, Counter()))
        self._replayed += sum(c.trained for c in message.counts if c.rollout in self._again)
        self._again.clear()
        trained, discarded, lags_of_step, foreign = 0, Counter[str](), Counter[int](), 0
        if self._config.train.replay_groups:
            self._store_for_replay(message.version - 1)
        for counts, lags in self._consumed.pop(message.version - 1, []):
            rollouts = self._store.experience.rollouts
            for count in by_rollout([placed(one, rollouts[one.rollout]) for one in counts]):
                imported = not rollouts[count.rollout].own
                self._store.record(
                    Trained(count.rollout, count.trained, count.discarded, count.places)
                )
                if imported:
                    foreign += count.trained
                    continue
                trained += count.trained
                discarded.update(count.discarded)
            lags_of_step.update(lags)
        self.lags.update(lags_of_step)
        self.account = StepAccount(trained, discarded, lags_of_step)
        self.version = message.version
        responses = self._responses.metrics()
        self.metrics = message.metrics | responses | self._by_task
        told, last = message.metrics, message.last_rank
        self.alarms.look(self.version, trained, discarded, told, responses, curve, last)
        if self._config.train.replay_groups:
            self.metrics["replayed_tokens"] = float(self._replayed)
        if self._config.foreign.source != "none":
            self.metrics["foreign_tokens"] = float(foreign)
        self._replayed = 0
        self.last_activity, self.last_step = self._clock.now(), trio.current_time()
        every = self._config.train.checkpoint_every
        self._save_due |= self.finished or bool(every and self.version % every == 0)

    def _store_for_replay(self, step: int) -> None:
        """Keep those groups of a step that is over which the next step may train again."""
        rollouts = self._store.experience.rollouts
        numbers = dict.fromkeys(
            rollouts[count.rollout].group
            for counts, _ in self._consumed.get(step, [])
            for count in counts
        )
        for group in (self._store.experience.groups[number] for number in numbers):
            candidate = Candidate(group.id, group.oldest, self._compared(group))
            if useful(candidate, step + 1, self._config.staleness.max_lag):
                self._store.record(
                    StoredForReplay(group.id, candidate.oldest + self._config.staleness.max_lag)
                )

    def _compared(self, group: Group | ReplayGroup) -> list[tuple[float, ...]]:
        """The rewards of a group that its advantages compare."""
        facts = group.facts
        return compared(self._credit, facts.rewards, facts.turns, facts.above)

    def save(self) -> bool:
        """Have the trainer save its version, once. Returns False if that has to wait
        (`Checkpointing.save`)."""
        assert not self.closing, (
            "the trainer may make the next version before it saves, and the cursor would be of "
            "this one"
        )
        if not self.checkpoints.save(self.version, self.finished or self.starved):
            return False
        self._save_due = False
        return True

    def on_saved(self, message: Saved) -> None:
        """A checkpoint is complete, or could not be written. Raises ImpossibleEvent for one that
        was not asked for."""
        self._commands.saved()
        self.last_activity = self._clock.now()
        self.checkpoints.on_saved(message, self.last_activity)
