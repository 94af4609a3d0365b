"""Reasons that the coordinator gives for replacing an actor and for ending the run. Invariant: each
is true by the events and by what was really sent.
"""

from __future__ import annotations

from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.experience import events as e
from asyncrl.simulation.checker.checked_run import CheckedRun
from asyncrl.simulation.checker.publication_witness import FAILURES

SIGNALLESS = frozenset({"k_min", "truncated", "zero_variance"})
"""Reasons to leave out what had no signal."""
SUSPECT = 3
"""Bad chunks that cost an engine its place."""
SILENT_S = 60.0
"""Seconds of silence that cost an agents actor its place."""


class ReasonWitness:
    """Watches a run through all its lives."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        self._filtered = 0  # units without a signal in a row
        self._signals = 0  # complete groups when this life began
        self._heard: dict[str, float] = {}  # when each start last said anything
        self._wrong: set[str] = set()  # starts that received other weights than were sent

    def begin(self) -> None:
        """A life begins with what the reference has."""
        self._filtered, self._signals = 0, len(self._run.reference.signals)

    def left(self, event: e.Discarded | e.Dropped) -> None:
        """A rollout or group was left out."""
        self._filtered += event.reason in SIGNALLESS

    def taken(self) -> None:
        """A step took something."""
        self._filtered = 0

    def heard(self, start: str) -> None:
        """A start of an actor has said something."""
        self._heard[start] = self._run.clock()

    def wrong_weights(self, start: str) -> None:
        """A start of an actor received other weights than were sent."""
        self._wrong.add(start)

    def replaced(self, start: str, reason: str) -> None:
        """Check why an actor is replaced."""
        run = self._run
        if "has episodes" in reason:
            silent_s = run.clock() - self._heard.get(start, 0.0)
            held = [x.id for x in run.reference.episodes if x.holder == start.partition("/")[0]]
            run.hold(
                "blame",
                silent_s > SILENT_S,
                "{} is replaced, and spoke {} s ago; it has {}",
                start,
                silent_s,
                held,
            )
        if "checksums" in reason:
            run.hold(
                "blame",
                start in self._wrong,
                "{} is replaced, and had received what was sent: {}",
                start,
                reason,
            )
        if "cannot be" in reason:
            run.hold(
                "blame",
                run.garbled[start] >= SUSPECT,
                "{} is replaced, and had sent {} chunks that cannot be: {}",
                start,
                run.garbled[start],
                reason,
            )

    def over(self, outcome: Outcome, failed: int) -> None:
        """Check why the run is over. `failed` is the number of publications begun since one was
        committed."""
        run = self._run
        leased = [call.id for call in run.reference.calls() if call.holder]
        if outcome.ok and "stopped early" not in outcome.reason:
            run.hold(
                "nothing leaks",
                not leased,
                "the run is over, and rollouts {} are still leased",
                leased,
            )
        patience = run.config.rollout.filter_patience
        if "were all filtered" in outcome.reason:
            run.hold(
                "causes",
                self._filtered // run.per_group >= patience,
                "{}; there were {} in a row",
                outcome.reason,
                self._filtered // run.per_group,
            )
        if "had rewards that differ" in outcome.reason:
            signals = run.reference.signals  # some may have come since, in the drain
            floor = run.config.rollout.accept_floor * patience
            windows = [
                sum(signals[end - patience : end])
                for end in range(max(patience, self._signals), len(signals) + 1)
            ]
            few = any(not passed or passed < floor for passed in windows)
            run.hold("causes", few, "{}; of groups in a row {} had", outcome.reason, windows)
        if "failed in a row" in outcome.reason:
            run.hold(
                "causes",
                failed >= FAILURES,
                "{}; {} were begun since one was committed",
                outcome.reason,
                failed,
            )
