"""The curve of a run, `metrics.jsonl`: one line, a point, for each step and for each evaluation.

Invariant: each version has one line of its step, in order, and none is missing, whatever was
killed. A resumed run makes the steps since its checkpoint again. A version that was published is
made again as it was, so its lines stand. Later ones are cut, and written as they are made.

Display, summary and metrics take from here what is a step's or an evaluation's. A number that does
not exist is None, and null in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from asyncrl.explain.conditions.answers import rewards_to_keep
from asyncrl.explain.evaluation_figures import EvaluatedWeights, Figures
from asyncrl.explain.json_files import decoded
from asyncrl.files import open_regular, whole_file

LINE_BYTES = 2**20
"""Most bytes of a line; asyncrl writes none that is longer."""


class StepPoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="step"):
    """One step, which made `version`.

    `at` is in seconds since 1970, `seconds` those that the run has worked by then, in all its
    lives; `step_seconds` the optimizer's. `reward` is the mean of the rollouts that were looked at
    for it, also of those that the filter left out. `trained` tokens
    entered its loss, `discarded` ones are by reason; `lag_mean` and `lag_max` are of the tokens
    that it was given, in versions. `metrics` are the trainer's other figures of the step (loss,
    gradient norm, learning rate, clipped share, divergence …), `alarms` the names of those it
    raised.

    `generated` tokens were generated in the whole run by then. Rates are over the last seconds,
    idle shares from 0 to 1 since the process began; so many rollouts and bytes wait in the queue,
    and decoding stood still for `pause_seconds` at the last publication.
    """

    version: int
    at: float
    seconds: float
    step_seconds: float
    reward: float | None
    trained: int
    discarded: dict[str, int]
    lag_mean: float | None
    lag_max: int
    metrics: dict[str, float | None]
    alarms: list[str]
    generated: int
    generated_per_s: float
    trained_per_s: float
    queue_rollouts: int
    queue_bytes: int
    idle_trainer: float | None
    idle_rollout: float | None
    pause_seconds: float | None


class EvaluationPoint(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="evaluation"
):
    """One evaluation, of `version`: the share of held-out prompts answered right, greedily, 0 to 1,
    and the `figures` of sampled answers, by name (avg@n, pass@k). They are over the `asked` ones of
    `prompts`: the others cannot be answered. The accuracy is None if no answer has a verdict. The
    `weights` that answered are the version's own, or the average of the weights at that version
    (`evaluation.weights`)."""

    version: int
    at: float
    seconds: float
    accuracy: float | None
    asked: int = 0
    prompts: int = 0
    figures: Figures = {}
    weights: EvaluatedWeights = "current"


Point = StepPoint | EvaluationPoint


def line_of(point: Point) -> bytes:
    """The line of a point; a number that is not finite becomes null."""
    return msgspec.json.encode(point) + b"\n"


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The same figures, with None for each that is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def point_of(line: bytes) -> Point | None:
    """The point of a line; None for one that is torn, or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        return decoded(line, Point)  # type: ignore[arg-type]  # a union is no type to mypy
    except msgspec.DecodeError:
        return None


def kept(lines: Iterable[bytes], version: int, published: int) -> Iterator[bytes]:
    """The lines that stand where a run goes on from the checkpoint of `version`, and `published`
    was the last version published. Lines that are torn or damaged are left out, and the steps after
    the checkpoint from the first one on that is missing: they are made again.

    >>> one, two = (EvaluationPoint(version=v, at=0.0, seconds=0.0, accuracy=0.5) for v in (1, 2))
    >>> [line == line_of(one) for line in kept([line_of(one), line_of(two)[:20]], 0, 2)]
    [True]
    """
    step, evaluated = 0, set[int]()
    for line in lines:
        match point_of(line):
            case StepPoint(version=made) if step < made <= max(version, published):
                if made <= version or made == max(step, version) + 1:
                    step = made
                    yield line
            case EvaluationPoint(version=of) if of not in evaluated:
                if of <= max(version, published):
                    evaluated.add(of)
                    yield line


def read(path: Path) -> Iterator[Point]:
    """The points of a file, also of one that is being written. Raises OSError."""
    with open_regular(path) as file:
        for line in _lines(file.readline):
            if (point := point_of(line)) is not None:
                yield point


def _lines(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(lambda: readline(LINE_BYTES), b"")


def trim(path: Path, version: int, published: int) -> None:
    """Leave in the file what `kept` does, whole or not at all. Nothing where there is no file.
    Raises OSError."""
    try:
        old = open_regular(path)
    except FileNotFoundError:
        return
    with old, whole_file(path) as new:
        new.writelines(kept(_lines(old.readline), version, published))


class Curve:
    """The points of a run so far, of which it holds the last step, every accuracy, and the mean
    rewards that an alarm may look at.

    >>> curve = Curve()
    >>> curve.add(EvaluationPoint(version=0, at=0.0, seconds=2.0, accuracy=0.25))
    >>> curve.accuracy, curve.last
    ({0: 0.25}, None)
    """

    def __init__(
        self, points: Iterable[Point] = (), keep: Callable[[bytes], None] = lambda line: None
    ) -> None:
        """`points` are those of the run's earlier lives; `keep(line)` takes each new one."""
        self.last: StepPoint | None = None
        self.accuracy: dict[int, float] = {}
        """Share of correct answers, 0 to 1, by version, where answers have verdicts."""
        self.figures: dict[int, Figures] = {}
        """Figures of sampled answers, by version, of all evaluations, in their order."""
        self.asked = self.prompts = 0
        """Held-out prompts that the last evaluation asked, and all."""
        self.evaluated_weights: EvaluatedWeights = "current"
        """The weights that all of these are of."""
        self.rewards: dict[int, float] = {}
        """Mean rewards by the version that the step made (`rewards_to_keep`)."""
        self._keep = keep
        self.before_s = 0.0
        """Seconds that the run had worked in its earlier lives."""
        for point in points:
            self._take(point)
            self.before_s = max(self.before_s, point.seconds)

    @property
    def evaluated(self) -> dict[int, float | None]:
        """The accuracy of each evaluated version; None if no answer had a verdict."""
        return {version: self.accuracy.get(version) for version in self.figures}

    @property
    def step_metrics(self) -> dict[str, float]:
        """The reward and the other figures of the last step, by name, those that exist."""
        if self.last is None:
            return {}
        found = {"reward": self.last.reward, **self.last.metrics}
        return {name: value for name, value in found.items() if value is not None}

    def add(self, point: Point) -> None:
        """Append a point. One that is already there is skipped: a resumed run has made that version
        again."""
        known = (
            point.version <= (self.last.version if self.last else 0)
            if isinstance(point, StepPoint)
            else point.version in self.figures
        )
        if not known:
            self._take(point)
            self._keep(line_of(point))

    def _take(self, point: Point) -> None:
        match point:
            case StepPoint():
                self.last = point
                if point.reward is not None:
                    rewards = self.rewards | {point.version: point.reward}
                    self.rewards = rewards_to_keep(rewards, self.accuracy)
            case EvaluationPoint(version=version):
                if point.accuracy is not None:
                    self.accuracy[version] = point.accuracy
                self.figures[version] = point.figures
                self.asked, self.prompts = point.asked, point.prompts
                self.evaluated_weights = point.weights
