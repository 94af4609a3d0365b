"""Text that means harm to a terminal, wherever a run's files have room for text."""

from __future__ import annotations

from asyncrl.explain import summary
from asyncrl.explain.run_status import ActorStatus, GroupCounts, JournalStatus, RunStatus
from asyncrl.explain.summary import Alarmed, SlowestVerifier, Summary
from asyncrl.messages import Wait

HOSTILE = "\x1b]0;mine\x07\x1b[2J\x9b2J\u202eelims\u2066\u2028\r\nasyncrl: mine\x00\x7f"
HOSTILE_SUMMARY = Summary(
    ok=False,
    reason=HOSTILE,
    steps=1,
    seconds=1.0,
    tokens=summary.TokenTotals(1, 0, {HOSTILE: 1}),
    rollouts=summary.RolloutTotals(1, 0, {HOSTILE: 2}),
    alarms={HOSTILE: Alarmed(1, HOSTILE)},
    restarts={HOSTILE: 1},
    slowest_verifier=SlowestVerifier(1, 2.0, HOSTILE),
)


def hostile_status() -> RunStatus:
    actor = ActorStatus(
        name=HOSTILE, role="trainer", here=False, incarnation=0, pid=1, seconds=99.0
    )
    return RunStatus(
        at=0.0,
        seconds=1.0,
        phase="run",
        step=1,
        steps=2,
        committed=None,
        token_s=1.0,
        verdict_s=1.0,
        step_s=1.0,
        stall_s=1.0,
        report_s=1.0,
        window_s=1.0,
        idle={},
        generated_per_s=0.0,
        trained_per_s=0.0,
        actors=[actor],
        waits=[Wait(HOSTILE, HOSTILE, 1.0, 2.0)],
        publication=None,
        evaluating=None,
        rollouts={},
        groups=GroupCounts(),
        awaited=[],
        lease_p95_s=None,
        lease_deadline_s=1.0,
        pump_s=0.0,
        tokens=summary.TokenTotals(),
        ledger=summary.RolloutTotals(),
        journal=JournalStatus(trouble=HOSTILE),
        restarts={},
        alarms=[HOSTILE],
    )
