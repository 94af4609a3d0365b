"""Collects the state of a run from the parts that know it. It only reads.

`RunStatus` is all of it, for `asyncrl status`, `asyncrl why` and a run that stalled. `StatusUpdate`
is the few numbers that the launcher shows every second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import trio

from asyncrl.actors.coordinator.collect_summary import judged_answers, mean_lag
from asyncrl.actors.coordinator.components import Components
from asyncrl.actors.coordinator.disk_watch import unwritten_checkpoints
from asyncrl.actors.coordinator.lifecycle import Phase
from asyncrl.actors.reporting import report_s
from asyncrl.experience.call import RolloutStatus
from asyncrl.explain.conditions.agreement import agreeing
from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.starts import in_words
from asyncrl.explain.conditions.table import findings
from asyncrl.explain.diagnosis import diagnose, listed
from asyncrl.explain.run_status import NAMED, ActorStatus, AwaitedRollout, GroupCounts, RunStatus
from asyncrl.explain.summary import ForeignTotals, RolloutTotals, TokenTotals
from asyncrl.messages import Report, StatusUpdate, role_of

TOLD = 8
"""Failed attempts after which it is shown that none has succeeded."""


def collect_status(parts: Components) -> RunStatus:
    """The state of the run at this moment."""
    now, config, stepping = parts.clock.now(), parts.config, parts.stepping
    experience, statistics, leases = parts.store.experience, parts.statistics, parts.leases
    statuses = experience.statuses()
    generated_per_s, trained_per_s = statistics.rates
    outcome, (unwritten, unwritten_why) = parts.outcome, unwritten_checkpoints(parts)
    tool_replies = int(statistics.counts["agents_offered_tools"])  # an increase comes as a float
    unread_calls = int(statistics.counts["agents_unread_calls"])
    return RunStatus(
        at=time.time(),
        seconds=statistics.seconds,
        phase=parts.lifecycle.phase.value,
        step=stepping.version if stepping else parts.curve.last.version if parts.curve.last else 0,
        steps=parts.steps,
        committed=parts.publishing.committed,
        token_s=now - parts.chunks.last_activity,
        verdict_s=now - parts.scoring.last_activity,
        step_s=trio.current_time() - (stepping.last_step if stepping else statistics.began),
        stall_s=config.supervision.stall_s,
        report_s=report_s(config),
        window_s=statistics.window_s,
        idle={role: dict(causes) for role, causes in statistics.recent().items()},
        generated_per_s=generated_per_s,
        trained_per_s=trained_per_s,
        actors=[
            _actor(parts, name, now, statuses[RolloutStatus.TAKEN])
            for name in parts.lifecycle.expected
        ],
        waits=parts.waits.table() + parts.episode_placement.waits,
        publication=parts.publishing.under_way(now),
        evaluating=parts.evaluation.running,
        rollouts={status.value: count for status, count in statuses.items()},
        groups=GroupCounts(
            live=experience.groups_live,
            max_live=parts.max_live,
            complete=len(experience.ready()),
            filtered=stepping.filtered if stepping else 0,
            patience=config.rollout.filter_patience,
        ),
        awaited=_awaited(parts, now),
        lease_p95_s=leases.times.p95_s,
        lease_deadline_s=leases.times.deadline_s,
        pump_s=statistics.pump_s,
        tokens=TokenTotals.of(experience.ledger.tokens),
        ledger=RolloutTotals.of(experience.ledger),
        foreign=ForeignTotals.of(experience.ledger.foreign.tokens),
        shared=parts.sharing.shared if parts.sharing is not None else 0,
        share_failed=parts.sharing.failed if parts.sharing is not None else 0,
        preferred=dict(parts.placement.preferences.counts),
        journal=parts.journal_status(),
        restarts=dict(statistics.restarts),
        lending=parts.lent.status(now),
        episodes=parts.playing.counts,
        failing=parts.episode_placement.failing,
        verdicts=judged_answers(parts.scoring.failures),
        alarms=[
            found.sentence
            for found in agreeing(
                (
                    *parts.alarms,
                    *findings(
                        RunFacts(
                            starts=parts.episode_placement.starts,
                            tool_replies=tool_replies,
                            unread_calls=unread_calls,
                        )
                    ),
                )
            )
        ],
        recent=parts.store.outcomes.recent,
        unwritten=unwritten,
        unwritten_why=unwritten_why,
        judge_missed=parts.scoring.judge.missed,
        judge_why=parts.scoring.judge.why,
        tool_replies=tool_replies,
        unread_calls=unread_calls,
        ok=outcome.ok if outcome and parts.lifecycle.phase is Phase.STOP else None,
        reason=outcome.reason if outcome else "",
    )


def _awaited(parts: Components, now: float) -> list[AwaitedRollout]:
    """The oldest leases, at most NAMED of them."""
    calls = parts.store.experience.calls
    return [
        AwaitedRollout(
            rollout=id,
            holder=calls[id].holder,
            attempt=lease.attempt,
            tokens=calls[id].tokens,
            seconds=now - lease.since,
            deadline_s=lease.deadline - lease.since,
        )
        for id, lease in parts.leases.oldest(NAMED)
    ]


def _actor(parts: Components, name: str, now: float, taken: int) -> ActorStatus:
    """The state of one actor; `taken` rollouts are with the trainer."""
    role, peer = role_of(name), parts.roster.get(name)
    if peer is None:
        last = parts.roster.last_seen.get(name)
        return ActorStatus(
            name=name,
            role=role,
            here=False,
            incarnation=last.incarnation if last else -1,
            pid=last.pid if last else 0,
            seconds=now - (last.at if last else parts.statistics.began),
            removed=parts.lifecycle.removed.get(name, ""),
        )
    engine, streamed = parts.engines.get(name), parts.chunks.streamed.get(name)
    match role:
        case "rollout":  # one that is being replaced has no engine any more
            holds = sum(map(len, engine.held.values())) if engine else 0
        case "agents":
            holds = parts.playing.held(name)
        case "reward":
            holds = parts.scoring.held(name)
        case _:
            holds = taken
    report: Report = peer.report
    return ActorStatus(
        name=name,
        role=role,
        here=True,
        incarnation=peer.incarnation,
        pid=peer.pid,
        seconds=now - peer.last_message,
        idle={
            cause: min(1.0, seconds / report.seconds)
            for cause, seconds in report.idle.items()
            if seconds and report.seconds
        },
        waits=report.waits,
        holds=holds,
        version=engine.version if engine else None,
        streamed_s=None if streamed is None or role != "rollout" else now - streamed,
        busy=report.busy,
        saving_s=report.saving_s,
    )


def collect_update(parts: Components) -> StatusUpdate:
    """The numbers that the launcher shows."""
    statistics, stepping, experience = parts.statistics, parts.stepping, parts.store.experience
    generated_per_s, trained_per_s = statistics.rates
    lags = stepping.lags if stepping else Counter[int]()
    curve, pauses = parts.curve, parts.publishing.pauses
    accuracy_version = max(curve.figures, default=-1)
    phase, note = _phase(parts)
    metrics, recent = curve.step_metrics, parts.store.outcomes.recent
    return StatusUpdate(
        seconds=statistics.seconds,
        phase=phase,
        step=stepping.version if stepping else 0,
        steps=parts.steps,
        reward=metrics.get("reward"),
        accuracy=curve.accuracy.get(accuracy_version),
        accuracy_version=accuracy_version,
        accuracy_weights=curve.evaluated_weights,
        accuracy_asked=curve.asked,
        accuracy_prompts=curve.prompts,
        evaluated=curve.figures.get(accuracy_version, {}),
        generated_per_s=generated_per_s,
        trained_per_s=trained_per_s,
        lag_mean=mean_lag(lags),
        lag_max=max(lags, default=0),
        queue_items=experience.queue_items,
        queue_bytes=experience.queue_bytes,
        idle_trainer=statistics.idle("trainer"),
        idle_rollout=statistics.idle("rollout"),
        pause_seconds=max(pauses[-1].values(), default=None) if pauses else None,
        note=note,
        exact=metrics.get("exact"),
        truncated=metrics.get("truncated"),
        response_tokens=metrics.get("response_tokens"),
        entropy=metrics.get("entropy"),
        progress=parts.underway.shown,
        done={
            "rollout": experience.ledger.tokens.total,
            "reward": parts.scoring.failures.attempts,
            "agents": parts.playing.failures.attempts,
            "trainer": stepping.version if stepping else 0,
        },
        alarms=[alarm.sentence for alarm in parts.outside_alarms.last],
        judged=recent.rewards,
        judged_reward=recent.reward,
        judged_exact=recent.exact,
        filtered=recent.filtered,
        limit=diagnose(collect_status(parts)) if parts.lifecycle.phase is Phase.RUN else "",
    )


def _common_failures(parts: Components) -> Iterator[str]:
    """The reasons why nothing has succeeded so far, once several attempts have failed."""
    for what, failures in (
        ("requests fail", parts.chunks.failures),
        ("agents fail", parts.playing.failures),
        ("answers get no verdict", parts.scoring.failures),
    ):
        reason = failures.common()
        if reason is not None and reason.times >= TOLD:
            yield f"all {failures.failed} {what}: {reason.text}"


def _phase(parts: Components) -> tuple[str, str]:
    """The activity of the run in a word, and what it waits for if that can take long."""
    stepping = parts.stepping
    match parts.lifecycle.phase:
        case Phase.INIT:
            return "starting", f"waiting for {listed(parts.lifecycle.missing)}"
        case Phase.READY:
            return "starting", f"publishing version {stepping.version if stepping else 0}"
        case Phase.RUN:
            if stepping is not None and stepping.finished:
                evaluating = parts.evaluation.running is not None
                return "finishing", "evaluating the last version" if evaluating else ""
            notes = [f"without {listed(list(gone))}"] if (gone := parts.lifecycle.removed) else []
            if parts.journal_status().trouble:
                notes.append("the journal waits for the disk")
            if stepping is not None and stepping.checkpoints.unwritten:
                notes.append(f"no checkpoint since version {stepping.saved}")
            notes += [f"{agents.name} fails" for agents in parts.episode_placement.failing]
            if (starts := parts.episode_placement.starts) is not None and starts.waiting:
                notes.append(in_words(starts))
            return "training", ", ".join([*_common_failures(parts), *notes])
        case _:
            return "draining", ""
