"""All conditions, and which of them hold. Invariant: each fact has one bound, whoever asks.

The coordinator judges each step, and each second the disk and the judge; its findings are the
alarms: metrics, logs, status and curve have what it found. `why` judges the last seconds, report
and page the run so far. The page `docs/looking.md` lists the table.
"""

from __future__ import annotations

from asyncrl.explain.conditions.answers import ANSWERS
from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts
from asyncrl.explain.conditions.disks import DISKS
from asyncrl.explain.conditions.experts import EXPERTS
from asyncrl.explain.conditions.off_policy import OFF_POLICY
from asyncrl.explain.conditions.rounded_apart import ROUNDED_APART
from asyncrl.explain.conditions.sides import IDLE_SIDES
from asyncrl.explain.conditions.slow_attention import SLOW_ATTENTION
from asyncrl.explain.conditions.starts import SLOW_STARTS
from asyncrl.explain.conditions.unread_calls import UNREAD_CALLS
from asyncrl.explain.conditions.waste import WASTE

CONDITIONS: tuple[Condition, ...] = (
    *DISKS,
    *OFF_POLICY,
    ROUNDED_APART,
    EXPERTS,
    *ANSWERS,
    IDLE_SIDES,
    *WASTE,
    SLOW_STARTS,
    UNREAD_CALLS,
    SLOW_ATTENTION,
)


def findings(facts: RunFacts) -> tuple[Finding, ...]:
    """The conditions that hold, in the order of the table.

    >>> [found.name for found in findings(RunFacts(generated=100, discarded={"stale": 10}))]
    ['stale']
    """
    return tuple(one for condition in CONDITIONS for one in condition.find(facts, condition.bound))
