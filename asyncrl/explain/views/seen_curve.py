"""The curve of a run as it is looked at: its columns, and the sums that figures are made of.

Invariant: each point is read once, however often the curve is asked for, and what is kept of a
long curve is bounded, but for a few numbers of each evaluation.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from asyncrl.explain.curve import EvaluationPoint, StepPoint
from asyncrl.explain.run_figures import CurveSums
from asyncrl.explain.run_files import curve_of
from asyncrl.explain.step_pace import StepPace
from asyncrl.explain.views.curve_columns import CurveColumns, CurveNumbers

LAST = 20
"""Steps that are kept: the last ones, and the last of those with an alarm."""
FIGURES = 8
"""Figures of sampled answers (pass@k …) that have a column, at most."""
JUMP_S = 1.0
"""Seconds by which a run's own time falls behind the clock where a new life begins, at least."""
StepFigure = Callable[[StepPoint], float | None]


def _metric(name: str) -> StepFigure:
    return lambda point: point.metrics.get(name)


def _of_tokens(name: str) -> StepFigure:
    """A share of the tokens that were trained."""

    def part(point: StepPoint) -> float | None:
        found, whole = point.metrics.get(name), point.metrics.get("trained_tokens")
        return None if found is None or not whole else found / whole

    return part


def _rejected(point: StepPoint) -> float | None:
    kept = point.metrics.get("kept_fraction")
    return None if kept is None else 1.0 - kept


STEP_COLUMNS: dict[str, StepFigure] = {
    "reward": lambda point: point.reward,
    "exact": _metric("exact"),
    "truncated": _metric("truncated"),
    "response_tokens": _metric("response_tokens"),
    "entropy": _metric("entropy"),
    "loss": _metric("loss"),
    "grad_norm": _metric("grad_norm"),
    "lr": _metric("lr"),
    "k3": _metric("k3"),
    "ess": _metric("ess"),
    "clipped": _metric("clip_fraction"),
    "rejected": _rejected,
    "on_policy": _of_tokens("tokens_at_lag_0"),
    "lag_mean": lambda point: point.lag_mean,
    "lag_max": lambda point: point.lag_max,
    "generated_per_s": lambda point: point.generated_per_s,
    "trained_per_s": lambda point: point.trained_per_s,
    "step_seconds": lambda point: point.step_seconds,
    "pause_seconds": lambda point: point.pause_seconds,
    "queue_rollouts": lambda point: point.queue_rollouts,
}
"""The columns that one step says. Those that follow from several are in `_Between`."""
BETWEEN = ("teach", "idle_trainer", "idle_rollout")


class SeenCurves(msgspec.Struct, frozen=True):
    """The numbers of `steps` and `evaluations` by column, and the `last` steps, and the last
    `alarmed` ones. The columns "version" and "seconds" (that the run has worked) say where each row
    is."""

    steps: CurveNumbers
    evaluations: CurveNumbers
    last: list[StepPoint]
    alarmed: list[StepPoint]

    def left_s(self, step: int, steps: int, at: float) -> float | None:
        """Seconds until all steps are made, at the pace of the last ones, of a run that is at
        `step`, `at` seconds since 1970; None before the second."""
        pace = StepPace()
        for point in self.last:
            pace.saw(point.seconds, point.version)
        if self.last:
            pace.saw(self.last[-1].seconds + max(0.0, at - self.last[-1].at), step)
        return pace.left_s(step, steps)


class SeenCurve:
    """The curve of the run in a directory. Several threads may ask at a time."""

    def __init__(self, run: Path) -> None:
        self._reader = curve_of(run)
        self._turn = threading.Lock()
        self._begin()

    @contextmanager
    def renewed(self) -> Iterator[CurveSums]:
        """The sums by now, which stand still while this lasts. Raises ConfigError."""
        with self._turn:
            self._renew()
            yield self._sums

    def lines(self) -> SeenCurves:
        """The columns by now. Raises ConfigError."""
        with self._turn:
            self._renew()
            evaluations = self._evaluations.numbers() if self._evaluations is not None else {}
            return SeenCurves(self._steps.numbers(), evaluations, [*self._last], [*self._alarmed])

    def _begin(self) -> None:
        self._sums = CurveSums()
        self._between = _Between()
        self._steps = CurveColumns(("version", "seconds", *STEP_COLUMNS, *BETWEEN))
        self._evaluations: CurveColumns | None = None
        self._last: deque[StepPoint] = deque(maxlen=LAST)
        self._alarmed: deque[StepPoint] = deque(maxlen=LAST)

    def _renew(self) -> None:
        if self._reader.replaced():
            self._begin()
        for point in self._reader.added():
            self._sums.add(point)
            if isinstance(point, StepPoint):
                self._add_step(point)
            else:
                self._add_evaluation(point)

    def _add_step(self, point: StepPoint) -> None:
        self._last.append(point)
        if point.alarms:
            self._alarmed.append(point)
        said = (figure(point) for figure in STEP_COLUMNS.values())
        self._steps.add([point.version, point.seconds, *said, *self._between.add(point)])

    def _add_evaluation(self, point: EvaluationPoint) -> None:
        if self._evaluations is None:  # its first one says what the run measures
            names = [*point.figures][:FIGURES]
            self._evaluations = CurveColumns(("version", "seconds", "accuracy", *names))
        figures = map(point.figures.get, self._evaluations.names[3:])
        self._evaluations.add([point.version, point.seconds, point.accuracy, *figures])


class _Between:
    """Figures that follow from a step and those before it: the share of the tokens that were
    trained, of those generated over the last LAST steps; and idle shares since the step before. A
    curve has idle shares since its process began, and a process that starts again counts from
    zero."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, int]] = deque(maxlen=LAST)  # generated, and trained so far
        self._trained = 0
        self._before: StepPoint | None = None
        self._life_s = 0.0  # that the run had worked before this life

    def add(self, point: StepPoint) -> tuple[float | None, ...]:
        """The columns BETWEEN of a step."""
        before = self._before
        if before is not None:
            behind = (point.at - before.at) - (point.seconds - before.seconds)
            if behind > JUMP_S:
                self._life_s, before = before.seconds, None
        self._trained += point.trained
        self._tokens.append((point.generated, self._trained))
        generated = self._tokens[-1][0] - self._tokens[0][0]
        trained = self._tokens[-1][1] - self._tokens[0][1]
        teach = min(1.0, trained / generated) if generated > 0 else None
        idle = [
            self._idle(point, before, since, earlier)
            for since, earlier in (
                (point.idle_trainer, before.idle_trainer if before else None),
                (point.idle_rollout, before.idle_rollout if before else None),
            )
        ]
        self._before = point
        return teach, *idle

    def _idle(
        self, point: StepPoint, before: StepPoint | None, since: float | None, earlier: float | None
    ) -> float | None:
        if since is None or before is None or earlier is None:
            return since
        now_s, then_s = point.seconds - self._life_s, before.seconds - self._life_s
        if now_s <= then_s:
            return None
        return min(1.0, max(0.0, (since * now_s - earlier * then_s) / (now_s - then_s)))
