"""All conditions, and which of them hold. Invariant: each fact has one bound, whoever asks.

The coordinator judges each step, and its findings are the alarms: metrics, logs, status and curve
have what it found. `why` judges the last seconds, report and page the run so far. The page
`docs/looking.md` lists the table.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.schema import StalenessConfig
from asyncrl.explain.conditions.answers import ANSWERS
from asyncrl.explain.conditions.condition import Condition, Finding, RunFacts
from asyncrl.explain.conditions.off_policy import OFF_POLICY
from asyncrl.explain.conditions.sides import IDLE_SIDES
from asyncrl.explain.conditions.waste import WASTE

CONDITIONS: tuple[Condition, ...] = (*OFF_POLICY, *ANSWERS, IDLE_SIDES, *WASTE)
DEFAULTS = StalenessConfig()


def findings(facts: RunFacts, staleness: StalenessConfig = DEFAULTS) -> tuple[Finding, ...]:
    """The conditions that hold, in the order of the table. `staleness` has the bounds that a user
    may set, all of which are of steps.

    >>> [found.name for found in findings(RunFacts(generated=100, discarded={"stale": 10}))]
    ['stale']
    """
    return tuple(_findings(facts, staleness))


def _findings(facts: RunFacts, staleness: StalenessConfig) -> Iterator[Finding]:
    for condition in CONDITIONS:
        yield from condition.find(facts, limit(condition, staleness))


def limit(condition: Condition, staleness: StalenessConfig) -> float:
    """The bound of a condition as a number."""
    if isinstance(condition.bound, str):
        return float(getattr(staleness, condition.bound.removeprefix("staleness.")))
    return condition.bound
