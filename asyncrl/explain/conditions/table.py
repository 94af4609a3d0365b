"""All conditions, and which of them hold. Invariant: each fact has one bound, whoever asks, and no
advice contradicts another.

The coordinator judges each step, and each second the disk, the judge and what came of the last
answers, calls and attempts; its findings are the alarms: metrics, logs, status and curve have what
it found. `why`, display, report and page judge the last seconds. The page `docs/looking.md` lists
the table.
"""

from __future__ import annotations

from asyncrl.explain.conditions.agreement import agreeing
from asyncrl.explain.conditions.answers import ANSWERS
from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts
from asyncrl.explain.conditions.disks import DISKS
from asyncrl.explain.conditions.experts import EXPERTS
from asyncrl.explain.conditions.failures import FAILURES
from asyncrl.explain.conditions.off_policy import OFF_POLICY
from asyncrl.explain.conditions.rounded_apart import ROUNDED_APART
from asyncrl.explain.conditions.sides import IDLE_SIDES
from asyncrl.explain.conditions.signal import NO_SIGNAL
from asyncrl.explain.conditions.slow_attention import SLOW_ATTENTION
from asyncrl.explain.conditions.slow_rank import SLOW_RANK
from asyncrl.explain.conditions.starts import SLOW_STARTS
from asyncrl.explain.conditions.unread_calls import UNREAD_CALLS
from asyncrl.explain.conditions.waste import WASTE

CONDITIONS: tuple[Condition, ...] = (
    *DISKS,
    *FAILURES,
    *OFF_POLICY,
    ROUNDED_APART,
    EXPERTS,
    *ANSWERS,
    UNREAD_CALLS,
    NO_SIGNAL,
    *WASTE,
    SLOW_STARTS,
    SLOW_RANK,
    IDLE_SIDES,
    SLOW_ATTENTION,
)
"""The more pressing ones first."""


def findings(facts: RunFacts) -> tuple[Finding, ...]:
    """The conditions that hold, in the order of the table. One whose advice is against that of an
    earlier one is left out while that one holds.

    >>> [found.name for found in findings(RunFacts(generated=100, discarded={"stale": 10}))]
    ['stale']
    """
    return agreeing(one for row in CONDITIONS for one in row.find(facts, row.bound))
