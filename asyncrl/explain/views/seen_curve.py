"""The curve of a run as it is looked at: its lines, and the sums that figures are made of.

Invariant: each point is read once, however often the curve is asked for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from asyncrl.explain.curve import Point, StepPoint
from asyncrl.explain.run_figures import CurveSums
from asyncrl.explain.run_files import curve_of
from asyncrl.explain.sft_figures import LOSS
from asyncrl.explain.views.plots import PlotSeries

LAST = 10
"""Steps that are kept: the last ones, and the last of those with an alarm."""
LINES: dict[str, list[tuple[str, Callable[[StepPoint], float | None]]]] = {
    "reward": [("reward", lambda p: p.reward)],
    "lag": [("mean", lambda p: p.lag_mean), ("max", lambda p: p.lag_max)],
    "entropy, nats a token": [("entropy", lambda p: p.metrics.get("entropy"))],
    "k3 divergence": [("k3", lambda p: p.metrics.get("k3"))],
    "tokens/s": [
        ("generated", lambda p: p.generated_per_s),
        ("trained", lambda p: p.trained_per_s),
    ],
    "idle": [("trainer", lambda p: p.idle_trainer), ("rollout", lambda p: p.idle_rollout)],
    "pause, seconds": [("pause", lambda p: p.pause_seconds)],
}
"""The lines of each plot, and what a step says for each."""
HELD_OUT = "held-out loss, nats a token"
SUPERVISED: dict[str, list[tuple[str, Callable[[StepPoint], float | None]]]] = {
    "loss, nats a token": [("loss", lambda p: p.metrics.get("loss"))],
    "gradient norm": [("gradient norm", lambda p: p.metrics.get("grad_norm"))],
}
"""The same of a supervised run, beside the plot HELD_OUT."""
ALL = LINES | SUPERVISED


class SeenCurves(msgspec.Struct, frozen=True):
    """The lines of each plot, by its title, the last steps, and the last ones that raised an
    alarm."""

    series: dict[str, list[PlotSeries]]
    last: list[StepPoint]
    alarmed: list[StepPoint]


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
        """The lines by now. Raises ConfigError."""
        with self._turn:
            self._renew()
            series = {title: [one.copy() for one in each] for title, each in self._series.items()}
            return SeenCurves(series, [*self._last], [*self._alarmed])

    def _begin(self) -> None:
        self._sums = CurveSums()
        self._accuracy = PlotSeries("accuracy")
        self._loss = PlotSeries("held-out loss")
        self._series = {
            "held-out accuracy": [self._accuracy],
            HELD_OUT: [self._loss],
        } | {title: [PlotSeries(name) for name, _ in named] for title, named in ALL.items()}
        self._last: deque[StepPoint] = deque(maxlen=LAST)
        self._alarmed: deque[StepPoint] = deque(maxlen=LAST)

    def _renew(self) -> None:
        if self._reader.replaced():
            self._begin()
        for point in self._reader.added():
            self._add(point)

    def _add(self, point: Point) -> None:
        self._sums.add(point)
        if not isinstance(point, StepPoint):
            self._accuracy.add(point.version, point.accuracy)
            self._loss.add(point.version, point.figures.get(LOSS))
            return
        self._last.append(point)
        if point.alarms:
            self._alarmed.append(point)
        for title, named in ALL.items():
            for series, (_, says) in zip(self._series[title], named, strict=True):
                series.add(point.version, says(point))
