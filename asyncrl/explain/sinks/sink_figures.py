"""Figures of a curve's points under the names that they have wherever people look at runs. A board
makes a section of what is before the slash."""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl.explain.curve import EvaluationPoint, Point, StepPoint

_AT_LAG = "_at_lag_"


def figures_of(point: Point) -> dict[str, float]:
    """The figures of a point by name, those that exist.

    >>> figures = {"avg@4": 0.4}
    >>> figures_of(
    ...     EvaluationPoint(version=3, at=0.0, seconds=2.0, accuracy=0.5, figures=figures)
    ... )
    {'evaluation/accuracy': 0.5, 'evaluation/avg@4': 0.4, 'run/seconds': 2.0}
    """
    found: Mapping[str, float | None]
    match point:
        case EvaluationPoint():
            found = {
                "evaluation/accuracy": point.accuracy,
                **{f"evaluation/{name}": value for name, value in point.figures.items()},
            }
        case StepPoint():
            found = {
                "train/reward": point.reward,
                "train/tokens": point.trained,
                "train/step_seconds": point.step_seconds,
                "train/alarms": len(point.alarms),
                **{_name(name): value for name, value in point.metrics.items()},
                "lag/mean": point.lag_mean,
                "lag/max": point.lag_max,
                **{f"discarded/{reason}": count for reason, count in point.discarded.items()},
                "flow/generated": point.generated,
                "flow/generated_per_s": point.generated_per_s,
                "flow/trained_per_s": point.trained_per_s,
                "flow/queue_rollouts": point.queue_rollouts,
                "flow/queue_bytes": point.queue_bytes,
                "flow/idle_trainer": point.idle_trainer,
                "flow/idle_rollout": point.idle_rollout,
                "flow/pause_seconds": point.pause_seconds,
            }
    every = {**found, "run/seconds": point.seconds}
    return {name: float(value) for name, value in every.items() if value is not None}


def _name(metric: str) -> str:
    """The name of a trainer's figure; one of tokens of a lag is with the others of that lag.

    >>> _name("loss"), _name("k3_at_lag_2")
    ('train/loss', 'at_lag_2/k3')
    """
    name, at, lag = metric.rpartition(_AT_LAG)
    return f"at_lag_{lag}/{name}" if at else f"train/{metric}"
