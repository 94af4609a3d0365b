"""Collects a step's and an evaluation's point of the curve. It only reads."""

from __future__ import annotations

import time

from asyncrl.actors.coordinator.collect_summary import mean_lag
from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.decisions import Evaluated
from asyncrl.actors.coordinator.stepping import Stepping
from asyncrl.explain.curve import EvaluationPoint, StepPoint, finite


def step_point(parts: Components, stepping: Stepping, step_seconds: float) -> StepPoint:
    """The point of the step that was made last; its optimizer took `step_seconds`."""
    statistics, experience, account = parts.statistics, parts.store.experience, stepping.account
    generated_per_s, trained_per_s = statistics.rates
    pauses, metrics = parts.publishing.pauses, finite(stepping.metrics)
    return StepPoint(
        version=stepping.version,
        at=time.time(),
        seconds=parts.curve.before_s + statistics.seconds,
        step_seconds=step_seconds,
        reward=metrics.pop("reward", None),
        trained=account.trained,
        discarded=dict(sorted(account.discarded.items())),
        lag_mean=mean_lag(account.lags),
        lag_max=max(account.lags, default=0),
        metrics=metrics,
        alarms=[alarm.name for alarm in parts.alarms],
        generated=experience.ledger.tokens.total,
        generated_per_s=generated_per_s,
        trained_per_s=trained_per_s,
        queue_rollouts=experience.queue_items,
        queue_bytes=experience.queue_bytes,
        idle_trainer=statistics.idle("trainer"),
        idle_rollout=statistics.idle("rollout"),
        pause_seconds=max(pauses[-1].values(), default=None) if pauses else None,
    )


def evaluation_point(parts: Components, of: Evaluated) -> EvaluationPoint:
    """The point of an evaluation that is complete."""
    return EvaluationPoint(
        version=of.version,
        at=time.time(),
        seconds=parts.curve.before_s + parts.statistics.seconds,
        accuracy=of.accuracy,
        figures=of.figures,
        asked=of.asked,
        prompts=of.prompts,
        weights=parts.config.evaluation.weights,
    )
