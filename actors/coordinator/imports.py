"""Foreign answers: which ones join a group.

Invariant: a group is asked about once, when its own members are all judged or buried and it does
not grow; what joins it is in the journal (`Imported`). Nothing depends on it before, so a crash
between the last verdict and the answer loses nothing, and the resumed run asks again. The choice
depends on the seed, on the group's place in the data, and on what the source has.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.config import Config
from asyncrl.experience.events import Imported
from asyncrl.experience.group import Group
from asyncrl.messages import ForeignAnswer, Scored


class ForeignAnswers(Protocol):
    """Answers by prompt: those of a file, or of other runs."""

    def of(self, prompt: bytes) -> Sequence[ForeignAnswer]:
        """Return the answers to a prompt (`int32` ids), whose versions are 0: how many versions
        each is old is subtracted from the run's."""
        ...


class Imports:
    """The foreign answers of a run. `most` join a group."""

    def __init__(
        self, store: EventStore, config: Config, answers: ForeignAnswers | None = None
    ) -> None:
        """`answers` are those of a file, where `foreign.source` is that."""
        self._store, self._config, self._answers = store, config, answers
        self.most = config.foreign.most

    def decide(self) -> None:
        """Say of each group whose own members are all judged or buried what joins it."""
        experience = self._store.experience
        for group in experience.importing():
            chosen = self._chosen(group)
            self._store.record(Imported(group.id, experience.next_rollout, chosen))

    def _chosen(self, group: Group) -> list[ForeignAnswer]:
        """The answers that join a group; none where it is dropped for too few verdicts anyway, or
        the settings of a resumed run want none any more."""
        verdicts = sum(member.compared for member in group.own_members)
        if verdicts < self._config.rollout.k_min:
            return []
        if group.source == "pool":
            return self._of_pool(group)
        if self._answers is None:
            return []
        found = self._answers.of(group.prompt)
        count = min(group.imports, self.most, len(found))
        draw = random.Random(f"{self._config.run.seed}/foreign/{group.key}")
        places = sorted(draw.sample(range(len(found)), count))
        return [dated(found[place], group.admitted_version) for place in places]

    def _of_pool(self, group: Group) -> list[ForeignAnswer]:
        """The old success at this prompt, if all of the group's own fail and it is young enough."""
        answer = self._store.experience.pool.answers.get(group.prompt_index)
        own = [member.verdict for member in group.own_members]
        if answer is None or any(isinstance(one, Scored) and one.exact for one in own):
            return []
        age = group.admitted_version - answer.version
        return [answer] if self.most and age <= self._config.foreign.max_age else []


def dated(answer: ForeignAnswer, version: int) -> ForeignAnswer:
    """Return the answer with the version of this run that it is as old as, where its own version
    says how many it is older than `version`, as a number that is not positive."""
    return ForeignAnswer(
        answer.source,
        answer.origin,
        max(0, version + answer.version),
        answer.ids,
        answer.behaviour,
        answer.finish,
    )
