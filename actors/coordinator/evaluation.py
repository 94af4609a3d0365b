"""Measures held-out accuracy, beside training: of a greedy answer to each prompt, and of sampled
ones where they are asked for.

Invariant: every answer of one evaluation was sampled under one version, or is counted as mixed.

The version is pinned in the engines when it is committed. They serve it to the evaluation's leases
alone until every answer is judged; training and its publications go on meanwhile. If an engine
holds one version only (`Capabilities.keeps_versions`), the next publication waits for the last
answer. Agents' tools may take long: where they play, it waits for `hold_s` seconds, and then the
rest is answered under whatever is current, as mixed. If the last engine that had the version is
lost, the evaluation is given up by name, and the next version is evaluated in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from actors.coordinator.admission import Admission
from actors.coordinator.engine_pool import EnginePool
from actors.coordinator.event_store import EventStore
from actors.coordinator.pinning import Pinning
from actors.coordinator.placement import Placement
from actors.coordinator.playing import Playing
from actors.coordinator.reclaiming import Reclaiming
from asyncrl.config.schema import EvaluationConfig
from asyncrl.experience.events import Dropped
from asyncrl.observe.evaluation_figures import Figures, evaluation_figures
from asyncrl.processes.standstill import RunClock

PERFECT = 1.0
"""The reward of a correct answer. Verifiers may give less for a part of it."""


class Evaluation:
    """One evaluation at a time."""

    def __init__(
        self,
        store: EventStore,
        engines: EnginePool,
        admission: Admission,
        playing: Playing,
        placement: Placement,
        reclaiming: Reclaiming,
        pinning: Pinning,
        clock: RunClock,
        *,
        prompts: range,
        every: int,
        sampling: EvaluationConfig,
        hold_s: float,
        label: Callable[[int], str],
        known: Mapping[int, float],
        evaluated: Callable[[int, float, Figures], None],
    ) -> None:
        """`prompts` are the held-out ones, by their index. Every `every`-th version is evaluated; 0
        stands for none but the first and the last. `sampling` says how often each prompt is
        answered beside the greedy answer, `hold_s` is how many seconds an engine that holds one
        version gets no other meanwhile, and `label(prompt_index)` names its task, where there
        are several. What is `known`, an accuracy by version, is not measured again.
        `evaluated(version, accuracy, figures)` hears of each result: the greedy accuracy, from 0 to
        1, and what sampled answers and single tasks say."""
        self._store = store
        self._engines = engines
        self._admission = admission
        self._playing = playing
        self._placement = placement
        self._reclaiming = reclaiming
        self._pinning = pinning
        self._clock = clock
        self._prompts = prompts
        self._every = every
        self._sampling = sampling
        self._hold_s = hold_s
        self._labels = [label(prompt_index) for prompt_index in prompts]
        self._evaluated = evaluated
        self._first: int | None = None
        self._given_up = False  # the last evaluation was
        self.running: int | None = None
        """The version under evaluation; None if there is none."""
        self._since = 0.0
        self._mixed = 0  # groups of which an answer has tokens of another version
        self._correct: dict[int, int] = {}  # greedy answers that are, by prompt
        self._right: dict[int, int] = {}  # sampled answers that are correct, by prompt
        self._open = self._asked = 0  # groups whose answers are not judged, and all
        self.accuracy = dict(known)
        """Share of correct answers, 0 to 1, by version."""
        self.figures: dict[int, Figures] = {}
        """Figures of sampled answers and of each task, by version; none where nothing was sampled
        of one task."""

    @property
    def answered(self) -> tuple[int, int]:
        """The number of groups whose answers are judged, and the number of all."""
        return self._asked - self._open, self._asked

    def due(self, version: int, last: bool) -> bool:
        """True if `version` is to be evaluated now: it is the first one, an `every`-th one, or the
        `last` one, or it replaces one that was given up."""
        if self._first is None:
            self._first = version
        if self.running is not None or version in self.accuracy or not self._prompts:
            return False
        regular = version == self._first or bool(self._every and version % self._every == 0)
        return regular or last or self._given_up

    @property
    def holds_publication(self) -> bool:
        """True if engines must keep the version that is evaluated, and do so by getting no
        other."""
        return self.running is not None and not self._engines.keeps and not self._mixing

    @property
    def _mixing(self) -> bool:
        """True if what is not answered yet may be answered under any version."""
        held_s = self._clock.now() - self._since
        return not self._engines.keeps and held_s >= self._hold_s

    def start(self, version: int) -> None:
        """Ask the held-out prompts. `version` is pinned in every engine that serves it."""
        self.running, self._given_up, self._mixed = version, False, 0
        self._since = self._clock.now()
        self._correct, self._right = {}, {}
        pinned = version if self._engines.keeps or math.isinf(self._hold_s) else None
        ways = (0, self._sampling.samples) if self._sampling.samples else (0,)
        self._open = self._asked = sum(
            self._admission.start("evaluation", prompt_index, version=pinned, samples=samples)
            for samples in ways
            for prompt_index in self._prompts
        )

    def pump(self) -> None:
        """Lease the answers that wait, and count those that are judged."""
        if self.running is None:
            return
        pinned = None if self._mixing else self.running
        if pinned is not None and not self._engines.serves("evaluation", pinned):
            self._give_up()
            return
        self._playing.begin("evaluation")
        self._placement.lease("evaluation", pinned)
        for group in self._store.experience.ready("evaluation"):
            self._mixed += any(
                span.version != self.running for member in group.members for span in member.spans
            )
            answers = self._right if group.sampled else self._correct
            answers[group.prompt_index] = sum(reward >= PERFECT for reward in group.rewards)
            self._open -= 1
            self._store.record(Dropped(group.id, "evaluation"))
        if not self._open:
            self.accuracy[self.running] = sum(self._correct.values()) / len(self._prompts)
            self.figures[self.running] = self._figures()
            self._evaluated(self.running, self.accuracy[self.running], self.figures[self.running])
            self._end()

    def _figures(self) -> Figures:
        """The figures of sampled answers, and of each task by itself. A prompt that has no answer
        is answered wrongly. Of answers that mixed versions, their groups' share."""
        mixed = {"mixed": self._mixed / self._asked} if self._mixed else {}
        return mixed | evaluation_figures(
            [self._correct.get(prompt_index, 0) for prompt_index in self._prompts],
            [self._right.get(prompt_index, 0) for prompt_index in self._prompts],
            self._labels,
            self._sampling.samples,
            self._sampling.pass_at,
        )

    def _give_up(self) -> None:
        experience = self._store.experience
        for group in [g for g in experience.groups.values() if g.split == "evaluation"]:
            for call in [c for c in experience.calls.values() if c.group == group.id]:
                self._reclaiming.stop(call)
                self._reclaiming.release(call)
            self._store.record(Dropped(group.id, "evaluation"))
        self._given_up = True
        self._end()

    def _end(self) -> None:
        assert self.running is not None
        self.running = None
        self._pinning.release(None)
