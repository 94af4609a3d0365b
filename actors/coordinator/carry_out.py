"""Carries out what the coordinator's parts decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from asyncrl.actors.coordinator.collect_point import evaluation_point
from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.decisions import (
    Decision,
    EndRun,
    Evaluated,
    EvaluationDropped,
    LeaseAnswers,
    LoanEnded,
    ReplaceActor,
    VersionServed,
)

Replace = Callable[[str, str], None]
"""`replace(actor, reason)` ends an actor and has another one started (`Connections.replace`)."""


def carry_out(parts: Components, decisions: Iterable[Decision], replace: Replace) -> None:
    """Carry out these decisions in order."""
    for decision in decisions:
        match decision:
            case ReplaceActor(name, reason):
                replace(name, reason)
            case EndRun(reason, heals):
                parts.end(False, reason, heals=heals)
            case VersionServed():
                _served(parts, decision)
            case LoanEnded(seconds):
                parts.metrics.lent(seconds)
            case LeaseAnswers(version):
                parts.playing.begin("evaluation")
                parts.placement.lease("evaluation", version)
            case EvaluationDropped():
                parts.reclaiming.abandon_evaluation()
                parts.pinning.release(None)
            case Evaluated(version, accuracy, figures, asked):
                parts.metrics.evaluated(version, accuracy, figures, asked)
                parts.curve.add(evaluation_point(parts, decision))
                parts.pinning.release(None)
            case _:
                assert_never(decision)


def _served(parts: Components, served: VersionServed) -> None:
    publishing = parts.publishing
    parts.lifecycle.published(parts.clock.now())
    parts.metrics.published(publishing.seconds[-1], publishing.pauses[-1])
    if served.evaluate:
        parts.evaluation.start(served.version)
    parts.pinning.release(parts.evaluation.running)
