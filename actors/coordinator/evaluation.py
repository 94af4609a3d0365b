"""Measures held-out accuracy during training: of a greedy answer to each prompt, and of sampled
ones if set.

Invariant: every answer of one evaluation was sampled under one version, or is counted as mixed.

The version is pinned in the engines when it is committed. They serve it to the evaluation's leases
alone until every answer is judged; training and its publications continue meanwhile. If an engine
holds one version only (`Capabilities.keeps_versions`), the next publication waits for the last
answer, for `evaluation.hold_s` seconds; then the rest is answered under the current version, as
mixed: one long answer, or an agent's slow tool, must not hold training. If the last engine with the
version is lost, the evaluation is dropped by name, and the next version is evaluated instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asyncrl.actors.coordinator.admission import Admission
from asyncrl.actors.coordinator.decisions import (
    Decision,
    Evaluated,
    EvaluationDropped,
    LeaseAnswers,
)
from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.config import Config
from asyncrl.config.schema import EvaluationConfig
from asyncrl.experience.events import Dropped
from asyncrl.explain.evaluation_figures import Figures, evaluation_figures
from asyncrl.runtime.processes.standstill import RunClock

PERFECT = 1.0
"""The reward of a correct answer. Verifiers may give less for a part of it."""


class EvaluationPlan(NamedTuple):
    """Plan of a run's evaluations: the held-out `prompts`, by their index, and the `labels` of
    their tasks, where there are several; every `every`-th version, 0 for none but the first and the
    last; and how often each prompt is answered beside the greedy answer, and for how many seconds
    an engine that holds one version gets no other meanwhile (`sampling`)."""

    prompts: range
    labels: list[str]
    every: int
    sampling: EvaluationConfig


def evaluation_plan(config: Config, source: PromptSource) -> EvaluationPlan:
    """The plan of a run's evaluations."""
    prompts = source.evaluation_items()
    return EvaluationPlan(
        prompts,
        [source.label("evaluation", prompt_index) for prompt_index in prompts],
        config.train.eval_every,
        config.evaluation,
    )


class Evaluation:
    """One evaluation at a time."""

    def __init__(
        self,
        store: EventStore,
        engines: EnginePool,
        admission: Admission,
        clock: RunClock,
        plan: EvaluationPlan,
        known: Mapping[int, float | None],
    ) -> None:
        """A version in `known`, which has accuracies by version, is not evaluated again."""
        self._store = store
        self._engines = engines
        self._admission = admission
        self._clock = clock
        self._plan = plan
        self._first: int | None = None
        self._owed = False  # an evaluation was given up, or could not start
        self.running: int | None = None
        """The version under evaluation; None if there is none."""
        self._since = 0.0
        self._mixed = 0  # groups of which an answer has tokens of another version
        self._asked_prompts: list[int] = []  # the others cannot be answered
        self._verdicts = {False: 0, True: 0}  # of greedy answers, and of sampled ones
        self._correct: dict[int, int] = {}  # greedy answers that are, by prompt
        self._right: dict[int, int] = {}  # sampled answers that are correct, by prompt
        self._open = self._asked = 0  # groups whose answers are not judged, and all
        self.accuracy = dict(known)
        """Share of correct answers (0 to 1) to the prompts that were asked, by version; None if no
        answer has a verdict."""
        self.figures: dict[int, Figures] = {}
        """Figures of sampled answers and of each task, by version; none if there is one task and
        nothing was sampled."""

    @property
    def answered(self) -> tuple[int, int]:
        """The number of groups whose answers are judged, and the number of all."""
        return self._asked - self._open, self._asked

    def due(self, version: int, last: bool, *, held: bool = False) -> bool:
        """True if `version` must be evaluated now: it is the first one, an `every`-th one, or the
        `last` one, or it replaces one that was dropped. While nothing may be admitted (`held`),
        none is; a later version replaces it."""
        if self._first is None:
            self._first = version
        if self.running is not None or version in self.accuracy or not self._plan.prompts:
            return False
        regular = version == self._first or bool(
            self._plan.every and version % self._plan.every == 0
        )
        wanted = regular or last or self._owed
        self._owed |= wanted and held
        return wanted and not held

    @property
    def holds_publication(self) -> bool:
        """True if engines must keep the version that is evaluated, by getting no other."""
        return self.running is not None and not self._engines.keeps and not self._mixing

    @property
    def _mixing(self) -> bool:
        """True if the remaining prompts may be answered under any version."""
        held_s = self._clock.now() - self._since
        return not self._engines.keeps and held_s >= self._plan.sampling.hold_s

    def start(self, version: int) -> None:
        """Start the evaluation of `version`, which is pinned in every engine that serves it."""
        self.running, self._owed, self._mixed = version, False, 0
        self._since = self._clock.now()
        self._correct, self._right = {}, {}
        self._verdicts = {False: 0, True: 0}
        pinned = version if self._engines.keeps else None
        self._asked_prompts = [
            prompt_index
            for prompt_index in self._plan.prompts
            if self._admission.start("evaluation", prompt_index, version=pinned)
        ]
        samples = self._plan.sampling.samples
        self._open = self._asked = len(self._asked_prompts) + sum(
            self._admission.start("evaluation", prompt_index, version=pinned, samples=samples)
            for prompt_index in self._asked_prompts
            if samples
        )

    def pump(self) -> list[Decision]:
        """Count the answers that are judged, and return what is due."""
        if self.running is None:
            return []
        pinned = None if self._mixing else self.running
        if pinned is not None and not self._engines.serves("evaluation", pinned):
            self.running, self._owed = None, True
            return [EvaluationDropped()]
        for group in self._store.experience.ready("evaluation"):
            self._mixed += any(
                span.version != self.running for member in group.members for span in member.spans
            )
            answers = self._right if group.sampled else self._correct
            answers[group.prompt_index] = sum(reward >= PERFECT for reward in group.rewards)
            self._verdicts[group.sampled] += len(group.rewards)
            self._open -= 1
            self._store.record(Dropped(group.id, "evaluation"))
        return [LeaseAnswers(pinned)] if self._open else [self._end(self.running)]

    def _end(self, version: int) -> Evaluated:
        """Finish the evaluation of `version`, whose answers are all judged."""
        asked, known = self._asked_prompts, self._verdicts[False]
        self.accuracy[version] = sum(self._correct.values()) / len(asked) if known else None
        self.figures[version] = self._figures()
        self.running = None
        return Evaluated(
            version,
            self.accuracy[version],
            self.figures[version],
            asked=len(asked),
            prompts=len(self._plan.prompts),
        )

    def _figures(self) -> Figures:
        """The figures of sampled answers, and of each task by itself, over the prompts that were
        asked; none without a verdict. An answer without one counts as wrong. For answers of mixed
        versions, the share of their groups."""
        mixed = {"mixed": self._mixed / self._asked} if self._mixed else {}
        if not any(self._verdicts.values()):
            return mixed
        labels = dict(zip(self._plan.prompts, self._plan.labels, strict=True))
        asked, samples = self._asked_prompts, self._plan.sampling.samples
        return mixed | evaluation_figures(
            [self._correct.get(prompt_index, 0) for prompt_index in asked],
            [self._right.get(prompt_index, 0) for prompt_index in asked],
            [labels[prompt_index] for prompt_index in asked],
            samples,
            self._plan.sampling.pass_at,
        )
