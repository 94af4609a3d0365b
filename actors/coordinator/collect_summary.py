"""Collects the result of a run (`summary.json`) from the parts that know it. It only reads."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice

from asyncrl.actors.coordinator.common_failure import CommonFailure
from asyncrl.actors.coordinator.components import Components
from asyncrl.explain import summary

REASONS = 8
"""Reasons that a summary names."""


def collect_summary(parts: Components, ok: bool, reason: str) -> summary.Summary:
    """The result of the run so far, which ends well (`ok`) or not, for a `reason`."""
    stepping, ledger, statistics = parts.stepping, parts.store.experience.ledger, parts.statistics
    figures = parts.curve.figures
    lags = stepping.lags if stepping else Counter[int]()
    slowest, prompt_index = parts.scoring.slowest
    training_s = stepping.last_step - parts.admission.first_admission if stepping else -math.inf
    return summary.Summary(
        ok=ok,
        reason=reason,
        steps=stepping.version if stepping else 0,
        seconds=statistics.seconds,
        training_seconds=training_s if training_s > 0 else None,
        accuracy=summary.Accuracy.of(parts.curve),
        evaluated=figures[max(figures)] if figures else {},
        tokens=summary.TokenTotals.of(ledger.tokens),
        rollouts=summary.RolloutTotals.of(ledger),
        foreign=summary.ForeignTotals.of(ledger.foreign.tokens),
        lag=summary.Lag(mean_lag(lags), max(lags, default=0)),
        responses=summary.Responses.of(parts.curve.step_metrics),
        alarms=parts.outside_alarms.all | (stepping.alarms.all if stepping else {}),
        bias=parts.store.experience.audit.report(),
        idle=summary.Idle(statistics.idle("trainer"), statistics.idle("rollout")),
        publication=parts.publishing.total,
        published_gap=parts.curve.step_metrics.get("published_gap"),
        restarts=dict(statistics.restarts),
        removed=dict(parts.lifecycle.removed),
        slowest_verifier=summary.SlowestVerifier(prompt_index, slowest)
        if prompt_index >= 0
        else None,
        verdicts=judged_answers(parts.scoring.failures),
    )


def judged_answers(answers: CommonFailure, most: int = REASONS) -> summary.JudgedAnswers:
    """The counts of answers, with only the `most` frequent reasons."""
    reasons = dict(islice(answers.counts.items(), most))
    return summary.JudgedAnswers(answers.attempts, answers.failed, reasons)


def mean_lag(lags: Counter[int]) -> float | None:
    """The mean lag of tokens; None if there are none.

    Example: 3 tokens of lag 0 and 1 token of lag 2 have the mean 0.5.
    """
    total = sum(lags.values())
    return sum(lag * tokens for lag, tokens in lags.items()) / total if total else None
