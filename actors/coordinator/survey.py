"""The situation of a run, gathered from everybody who knows a part of it. Invariant: it only looks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

from actors.coordinator.lifecycle import Phase
from actors.reporting import report_s
from asyncrl.config.derived import live_groups
from asyncrl.experience.rollout import Status
from asyncrl.messages import Report, Role
from asyncrl.situation import NAMED, Actor, Awaited, Groups, Situation
from asyncrl.summary import Rollouts, Tokens

if TYPE_CHECKING:
    from actors.coordinator.coordinator import Coordinator


def survey(run: Coordinator) -> Situation:
    """How `run` stands now."""
    now, config, training, experience = trio.current_time(), run.config, run.training, run.book.experience
    statuses, progress, leases = experience.statuses(), run.progress, run.generation.out
    generated_per_s, trained_per_s = progress.rates
    outcome = run.outcome
    return Situation(
        at=time.time(),
        seconds=progress.seconds,
        phase=run.life.phase.value,
        step=training.version if training else 0,
        steps=config.train.steps,
        published=run.publishing.published,
        token_s=now - run.generation.progress,
        verdict_s=now - run.judgement.progress,
        step_s=now - (training.stepped if training else progress.began),
        stall_s=config.run.stall_s,
        report_s=report_s(config),
        window_s=progress.window_s,
        idle={role: dict(causes) for role, causes in progress.recent().items()},
        generated_per_s=generated_per_s,
        trained_per_s=trained_per_s,
        actors=[_actor(run, name, now, statuses[Status.TAKEN]) for name in run.expected],
        waits=run.waits.table(),
        publication=run.publishing.under_way(now),
        evaluating=run.evaluation.running,
        rollouts={status.value: count for status, count in statuses.items()},
        groups=Groups(
            live=experience.groups_live,
            most=live_groups(config),
            complete=len(experience.ready()),
            filtered=training.filtered if training else 0,
            patience=config.rollout.filter_patience,
        ),
        awaited=[
            Awaited(
                rollout=id,
                owner=experience.rollouts[id].owner,
                attempt=held.attempt,
                tokens=experience.rollouts[id].tokens,
                seconds=now - held.since,
                deadline_s=held.deadline - held.since,
            )
            for id, held in leases.oldest(NAMED)
        ],
        lease_p95_s=leases.times.p95_s,
        lease_deadline_s=leases.times.deadline_s,
        pump_s=progress.pump_s,
        tokens=Tokens.of(experience.ledger.tokens),
        ledger=Rollouts.of(experience.ledger.rollouts),
        journal=run.journal(),
        restarts=dict(progress.restarts),
        alarms=[alarm.sentence for alarm in training.alarms] if training else [],
        ok=outcome.ok if outcome and run.life.phase is Phase.STOP else None,
        reason=outcome.reason if outcome else "",
    )


def _actor(run: Coordinator, name: str, now: float, taken: int) -> Actor:
    role, peer, seat = _role(name), run.roster.get(name), run.seats.get(name)
    streamed = run.generation.streamed.get(name)
    if peer is None:
        incarnation, pid, since = run.gone.get(name, (-1, 0, run.progress.began))
        return Actor(name=name, role=role, here=False, incarnation=incarnation, pid=pid, seconds=now - since)
    report: Report = peer.report
    return Actor(
        name=name,
        role=role,
        here=True,
        incarnation=peer.incarnation,
        pid=peer.pid,
        seconds=now - peer.heard,
        idle={cause: min(1.0, seconds / report.seconds) for cause, seconds in report.idle.items() if seconds and report.seconds},
        waits=report.waits,
        holds=sum(map(len, seat.held.values())) if seat else run.judgement.held(name) if role == "reward" else taken,
        version=seat.version if seat else None,
        streamed_s=None if streamed is None or role != "rollout" else now - streamed,
    )


def _role(name: str) -> Role:
    return "trainer" if name.startswith("trainer") else "rollout" if name.startswith("rollout") else "reward"
