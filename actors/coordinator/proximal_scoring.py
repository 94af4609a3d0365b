"""Has the trainer score tokens under the version that sampled them (`proximal = boundary`).

Before the trainer makes the next version, it scores the tokens of the version that it holds. Tokens
of earlier versions that came late are scored too, with weights that it keeps as long as more of
them may come.

Example: the trainer holds version 5, and step 5 is closed. A rollout has 8 tokens of version 5, and
3 of version 4 that came after step 4 was closed. All 11 are scored now.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.sequences import of_rollout
from asyncrl.actors.coordinator.trainer_commands import TrainerCommands
from asyncrl.config import Config
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.micro_batches import micro_batches
from asyncrl.experience.rollout import Rollout
from asyncrl.experience.sequence import joined_ids
from asyncrl.messages import ScoreProximal


class ProximalScoring:
    """The tokens of live rollouts that the trainer has scored."""

    def __init__(
        self, store: EventStore, trainer: TrainerCommands, leases: LeaseTable, config: Config
    ) -> None:
        self._store = store
        self._trainer = trainer
        self._leases = leases
        self._config = config
        self._scored: dict[int, int] = {}  # tokens that the trainer got, by rollout

    def score(self, step: int, served: int | None) -> None:
        """Have the trainer score, before it closes `step`, every token that it can. `served` is the
        last version that every engine serves."""
        experience = self._store.experience
        untaken = [rollout for rollout in experience.rollouts.values() if self._to_train(rollout)]
        self._scored = {rollout.id: self._scored.get(rollout.id, 0) for rollout in untaken}
        due = [
            rollout for rollout in untaken if _scorable(rollout, step) > self._scored[rollout.id]
        ]
        replayable = experience.replay_buffer.kept.values()
        live = [*self._scored, *(member.rollout for kept in replayable for member in kept.members)]
        oldest = self._oldest_to_come(served)
        batches = micro_batches(
            ([rollout] for rollout in due), self._tokens, micro_tokens(self._config)
        )
        for batch in batches or [[]]:
            pieces = [
                piece
                for rollout in batch
                for piece in of_rollout(experience.groups[rollout.group], rollout, self._config)
            ]
            samples = [piece.sample for piece in pieces]
            ids = joined_ids(piece.sequence for piece in pieces)
            groups = {rollout.group: experience.groups[rollout.group] for rollout in batch}
            images = {number: group.images for number, group in groups.items() if group.images}
            self._trainer.queue(ScoreProximal(step, samples, live, oldest, images), ids)
            self._scored |= {rollout.id: _scorable(rollout, step) for rollout in batch}

    def _oldest_to_come(self, served: int | None) -> int:
        """The oldest version that more tokens may come of. Engines sample under the version that
        every one serves, or a later one. Earlier tokens may still be on their way: of a leased
        rollout, from the version of its last token on, or the one that its engine served when it
        was leased. With `finish_on = own` a rollout continues under the version that it began with,
        which may be older."""
        experience = self._store.experience
        newest = (experience.version or 0) if served is None else served
        # an episode's tokens are scored when it is sealed
        played = (
            call.spans[0].version
            for rollout in experience.rollouts.values()
            if rollout.episode is not None and self._to_train(rollout)
            for call in rollout.episode.calls
            if call.spans
        )
        newest = min(newest, *played, newest)
        if self._config.staleness.finish_on == "mixed":
            return min([newest, *self._on_their_way()])
        unfinished = [
            rollout
            for rollout in experience.rollouts.values()
            if rollout.status in (RolloutStatus.WAITING, RolloutStatus.LEASED)
            and self._to_train(rollout)
        ]
        began = [
            rollout.spans[0].version
            if rollout.spans
            else experience.groups[rollout.group].admitted_version
            for rollout in unfinished
        ]
        return min([newest, *began])

    def _on_their_way(self) -> Iterator[int]:
        """The oldest version that a leased call's next token may be of, call by call."""
        experience = self._store.experience
        for call in experience.calls.values():
            if (
                call.status is RolloutStatus.LEASED
                and experience.groups[call.group].split == "train"
            ):
                served = self._leases.of(call.id).served or 0
                yield max(served, call.spans[-1].version) if call.spans else served

    def _to_train(self, rollout: Rollout) -> bool:
        """True if a later step may train it."""
        over = rollout.status is RolloutStatus.TAKEN and not self._config.train.replay_groups
        return not over and self._store.experience.groups[rollout.group].split == "train"

    def _tokens(self, rollout: Rollout) -> int:
        return self._store.experience.groups[rollout.group].sequence_tokens(rollout)


def _scorable(rollout: Rollout, step: int) -> int:
    """Count the tokens of no later version than `step` starts from. After a crash there may be
    others, whose turn comes again."""
    return sum(span.end - span.start for span in rollout.spans if span.version <= step)
