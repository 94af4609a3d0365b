"""The numbers of one run, alive or over, from its curve, status and summary.
Invariant: the curve is read line by line; what is kept grows with evaluations alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

import msgspec

from asyncrl.explain.conditions.agreement import agreeing_sentences
from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.table import findings
from asyncrl.explain.curve import EvaluationPoint, Point, StepPoint
from asyncrl.explain.diagnosis import facts_of
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.run_status import RunStatus
from asyncrl.explain.sft_figures import LOSS
from asyncrl.explain.summary import Summary, TokenTotals

REWARD_STEPS = 10
"""Steps over which a reward is averaged."""

Standing = Literal["begins", "goes on", "ended", "failed", "stalled", "killed"]


class EvaluatedAt(msgspec.Struct, frozen=True):
    """The `accuracy` (0 to 1) of a version, `seconds` after the run began to work, over the `asked`
    ones of `prompts`; None if no answer has a verdict."""

    version: int
    seconds: float
    accuracy: float | None
    asked: int = 0
    prompts: int = 0


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one run; None for one that does not exist.

    `seconds` are those that it has worked in all its lives, by its last point. Rewards are means of
    the first and the last REWARD_STEPS steps; rates are over the time between its first and its
    last step, in tokens. Idle shares are from 0 to 1, lag in versions, by trained token;
    `pause_seconds` the mean of those that decoding stood still at a publication. `tokens` account
    for all that were generated; `alarms` counts the steps that raised one, and `raised` are the
    sentences of those that the last step raised. `held_out_loss` is the first and the last one of a
    supervised run. `facts` are those of its last seconds."""

    run: str
    standing: Standing
    step: int
    steps: int | None
    seconds: float
    evaluations: list[EvaluatedAt]
    reward_first: float | None
    reward_last: float | None
    generated_per_s: float | None
    trained_per_s: float | None
    idle_trainer: float | None
    idle_rollout: float | None
    lag_mean: float | None
    lag_max: int
    pause_seconds: float | None
    tokens: TokenTotals
    restarts: int
    alarms: int
    raised: list[str] = []
    held_out_loss: tuple[float, float] | None = None
    facts: RunFacts | None = None

    @property
    def best(self) -> EvaluatedAt | None:
        """The evaluation of the largest accuracy, the first one of equals."""
        known = (one for one in self.evaluations if one.accuracy is not None)
        return max(known, key=lambda one: (one.accuracy or 0.0, -one.version), default=None)

    def seconds_to(self, accuracy: float) -> float | None:
        """Seconds until an evaluation had at least this accuracy; None where none had."""
        return min(
            (
                one.seconds
                for one in self.evaluations
                if one.accuracy is not None and one.accuracy >= accuracy
            ),
            default=None,
        )

    @property
    def discarded_share(self) -> float | None:
        """The share of the generated tokens that was discarded, 0 to 1."""
        return _ratio(sum(self.tokens.discarded.values()), self.tokens.generated)

    @property
    def changes(self) -> list[str]:
        """Sentences that say what to change, the most pressing first; none if nothing needs a
        change. They follow from the last status if there is one, else from the curve."""
        facts = msgspec.structs.replace(
            self.facts or RunFacts(idle_trainer=self.idle_trainer, idle_rollout=self.idle_rollout),
            generated=self.tokens.generated,
            discarded=self.tokens.discarded,
        )
        said = [*(found.sentence for found in findings(facts)), *self.raised]
        return agreeing_sentences(said)


def run_figures(files: RunFiles, sums: CurveSums | None = None) -> RunFigures:
    """The numbers of a run, of whose curve `sums` are known, or else read. Raises ConfigError where
    a file of it cannot be read."""
    if sums is None:
        sums = CurveSums(files.points())
    return counted(files.path.name, standing(files), sums, files.last_status, files.summary)


def standing(files: RunFiles) -> Standing:
    """Say in a word how a run stands. Raises ConfigError."""
    status = files.last_status
    if files.stalled:
        return "stalled"
    if status is not None and status.ok is not None:
        return "ended" if status.ok else "failed"
    if files.lives:
        return "goes on" if status is not None else "begins"
    return "killed" if status is not None else "failed"


class CurveSums:
    """Sums over the points of a curve that were added so far, in order."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self.first: StepPoint | None = None
        self.last: StepPoint | None = None
        self.evaluations: list[EvaluatedAt] = []
        self.rewards_first: list[float] = []
        self.rewards_last: deque[float] = deque(maxlen=REWARD_STEPS)
        self.seconds = self.lag_sum = self.pause_sum = 0.0
        self.pauses = self.lagged = self.lag_max = self.alarms = self.trained = 0
        self.discarded: dict[str, int] = {}
        self.losses: tuple[float, float] | None = None  # held out: the first, and the last
        for point in points:
            self.add(point)

    def add(self, point: Point) -> None:
        """Count a point."""
        self.seconds = max(self.seconds, point.seconds)
        if isinstance(point, EvaluationPoint):
            if (loss := point.figures.get(LOSS)) is not None:
                self.losses = (self.losses or (loss, loss))[0], loss
            self.evaluations.append(
                EvaluatedAt(
                    point.version, point.seconds, point.accuracy, point.asked, point.prompts
                )
            )
            return
        self.first, self.last = self.first or point, point
        self.trained += point.trained
        for reason, count in point.discarded.items():
            self.discarded[reason] = self.discarded.get(reason, 0) + count
        if point.reward is not None:
            if len(self.rewards_first) < REWARD_STEPS:
                self.rewards_first.append(point.reward)
            self.rewards_last.append(point.reward)
        if point.lag_mean is not None:
            self.lag_sum += point.lag_mean * point.trained
            self.lagged += point.trained
        self.lag_max = max(self.lag_max, point.lag_max)
        if point.pause_seconds is not None:
            self.pause_sum += point.pause_seconds
            self.pauses += 1
        self.alarms += bool(point.alarms)


def counted(
    name: str,
    standing: Standing,
    sums: CurveSums,
    status: RunStatus | None,
    ended: Summary | None,
) -> RunFigures:
    """The numbers that follow from these files of a run."""
    first, last = sums.first, sums.last
    between = last.seconds - first.seconds if first is not None and last is not None else 0.0
    trained_between = sums.trained - (first.trained if first is not None else 0)
    known = ended.tokens if ended is not None else status.tokens if status is not None else None
    of_curve = TokenTotals(
        last.generated if last is not None else 0, sums.trained, {**sums.discarded}
    )
    return RunFigures(
        run=name,
        standing=standing,
        step=last.version if last is not None else 0,
        steps=status.steps if status is not None else None,
        seconds=sums.seconds,
        evaluations=[*sums.evaluations],
        reward_first=_ratio(sum(sums.rewards_first), len(sums.rewards_first)),
        reward_last=_ratio(sum(sums.rewards_last), len(sums.rewards_last)),
        generated_per_s=(
            _ratio(last.generated - first.generated, between) if first and last else None
        ),
        trained_per_s=_ratio(trained_between, between),
        idle_trainer=last.idle_trainer if last is not None else None,
        idle_rollout=last.idle_rollout if last is not None else None,
        lag_mean=_ratio(sums.lag_sum, sums.lagged),
        lag_max=sums.lag_max,
        pause_seconds=_ratio(sums.pause_sum, sums.pauses),
        tokens=known if known is not None and known.generated else of_curve,
        restarts=sum(status.restarts.values()) if status is not None else 0,
        alarms=sums.alarms,
        raised=status.alarms if status is not None else [],
        held_out_loss=sums.losses,
        facts=facts_of(status) if status is not None and status.phase == "run" else None,
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
