"""The status of a run, gathered from everybody who knows a part of it. Invariant: it only looks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

from actors.coordinator.lifecycle import Phase
from actors.reporting import report_s
from asyncrl.config.flow import admission_policy
from asyncrl.experience.rollout import RolloutStatus
from asyncrl.ipc.messages import Report, Role
from asyncrl.observe.run_status import NAMED, ActorStatus, AwaitedRollout, GroupCounts, RunStatus
from asyncrl.observe.summary import RolloutTotals, TokenTotals

if TYPE_CHECKING:
    from actors.coordinator.coordinator import Coordinator


def collect_status(run: Coordinator) -> RunStatus:
    """How `run` stands now."""
    now, config, training, experience = (
        trio.current_time(),
        run.config,
        run.training,
        run.store.experience,
    )
    statuses, progress, leases = experience.statuses(), run.progress, run.generation.out
    generated_per_s, trained_per_s = progress.rates
    outcome = run.outcome
    return RunStatus(
        at=time.time(),
        seconds=progress.seconds,
        phase=run.life.phase.value,
        step=training.version if training else 0,
        steps=config.train.steps,
        published=run.publishing.published,
        token_s=now - run.generation.progress,
        verdict_s=now - run.scoring.progress,
        step_s=now - (training.stepped if training else progress.began),
        stall_s=config.supervision.stall_s,
        report_s=report_s(config),
        window_s=progress.window_s,
        idle={role: dict(causes) for role, causes in progress.recent().items()},
        generated_per_s=generated_per_s,
        trained_per_s=trained_per_s,
        actors=[_actor(run, name, now, statuses[RolloutStatus.TAKEN]) for name in run.expected],
        waits=run.waits.table(),
        publication=run.publishing.under_way(now),
        evaluating=run.evaluation.running,
        rollouts={status.value: count for status, count in statuses.items()},
        groups=GroupCounts(
            live=experience.groups_live,
            most=admission_policy(config).max_live,
            complete=len(experience.ready()),
            filtered=training.filtered if training else 0,
            patience=config.rollout.filter_patience,
        ),
        awaited=[
            AwaitedRollout(
                rollout=id,
                owner=experience.rollouts[id].holder,
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
        tokens=TokenTotals.of(experience.ledger.tokens),
        ledger=RolloutTotals.of(experience.ledger.rollouts),
        journal=run.journal(),
        restarts=dict(progress.restarts),
        alarms=[alarm.sentence for alarm in training.alarms] if training else [],
        ok=outcome.ok if outcome and run.life.phase is Phase.STOP else None,
        reason=outcome.reason if outcome else "",
    )


def _actor(run: Coordinator, name: str, now: float, taken: int) -> ActorStatus:
    role, peer, engine_handle = _role(name), run.roster.get(name), run.engine_pool.get(name)
    streamed = run.generation.streamed.get(name)
    if peer is None:
        incarnation, pid, since = run.gone.get(name, (-1, 0, run.progress.began))
        return ActorStatus(
            name=name, role=role, here=False, incarnation=incarnation, pid=pid, seconds=now - since
        )
    report: Report = peer.report
    return ActorStatus(
        name=name,
        role=role,
        here=True,
        incarnation=peer.incarnation,
        pid=peer.pid,
        seconds=now - peer.heard,
        idle={
            cause: min(1.0, seconds / report.seconds)
            for cause, seconds in report.idle.items()
            if seconds and report.seconds
        },
        waits=report.waits,
        holds=sum(map(len, engine_handle.held.values()))
        if engine_handle
        else run.scoring.held(name)
        if role == "reward"
        else taken,
        version=engine_handle.version if engine_handle else None,
        streamed_s=None if streamed is None or role != "rollout" else now - streamed,
    )


def _role(name: str) -> Role:
    return (
        "trainer"
        if name.startswith("trainer")
        else "rollout"
        if name.startswith("rollout")
        else "reward"
    )
