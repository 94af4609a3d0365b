"""Tokens that are to be scored under the version that sampled them (`proximal = boundary`).
Invariant: when a step is closed, each token that had come before it could be, of its version or an
earlier one, was given to the trainer to be scored.
"""

from __future__ import annotations

import math
from collections import defaultdict

from asyncrl.experience import events as e
from asyncrl.messages import CloseStep, Message, ScoreProximal
from asyncrl.simulation.checker.checked_run import CheckedRun


class ScoreWitness:
    """Hears of one life what comes, and what is scored."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        # by rollout: when tokens came, their version, and their number
        self._came: defaultdict[int, list[tuple[float, int, int]]] = defaultdict(list)
        self._asked: dict[int, int] = {}  # tokens that were given to the trainer, by rollout

    def begin(self) -> None:
        """A life begins with what the reference has."""
        for seen in self._run.reference.rollouts.values():
            for version, start, end in seen.spans():
                self._came[seen.id].append((-math.inf, version, end - start))

    def extended(self, event: e.Extended) -> None:
        """Tokens came."""
        self._came[event.rollout].append((self._run.clock(), event.version, len(event.ids) // 4))

    def told(self, message: Message) -> None:
        """The coordinator tells the trainer this."""
        match message:
            case ScoreProximal(step, samples):
                for sample in samples:
                    self._asked[sample.rollout] = sum(
                        span.end - span.start for span in sample.spans if span.version <= step
                    )
            case CloseStep(step):
                self._closed(step)

    def _closed(self, step: int) -> None:
        rollouts = self._run.reference.rollouts
        since = self._run.closable.get(step, -math.inf)
        self._came = defaultdict(list, {r: c for r, c in self._came.items() if r in rollouts})
        for rollout, came in self._came.items():
            seen = rollouts[rollout]
            if seen.step is None and seen.group.event.split == "train":
                due = sum(n for at, version, n in came if at < since and version <= step)
                due = min(due, sum(version <= step for version in seen.versions))  # some were cut
                asked = self._asked.get(rollout, 0)
                self._run.hold(
                    "proximal",
                    asked >= due,
                    "step {} is closed, and {} of {} tokens of rollout {} were given to be scored",
                    step,
                    asked,
                    due,
                    rollout,
                )
