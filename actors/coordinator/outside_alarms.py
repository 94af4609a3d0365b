"""Alarms from outside a step: the disk, the judge, and the outcomes of the last rollouts.
Invariant: an alarm is logged when it begins, each time its meaning changes, and once when it is
over. If only a count changes, it keeps its first text.
"""

from __future__ import annotations

import logging

from asyncrl.explain.conditions.condition import Finding, RunFacts
from asyncrl.explain.conditions.failures import FAILURES
from asyncrl.explain.conditions.signal import NO_SIGNAL
from asyncrl.explain.conditions.table import findings
from asyncrl.explain.summary import Alarmed
from asyncrl.runtime.reasons import same

logger = logging.getLogger(__name__)
COUNTED = frozenset(name for row in (NO_SIGNAL, *FAILURES) for name in row.names)
"""Alarms of recent outcomes, whose numbers change each second."""


class OutsideAlarms:
    """The alarms of now (`last`), and those of `all`, by name: how often each said something
    new."""

    def __init__(self) -> None:
        self.last: tuple[Finding, ...] = ()
        self.all: dict[str, Alarmed] = {}

    def look(self, facts: RunFacts) -> bool:
        """Look at the facts of the disk. Returns True if the alarms have changed."""
        found = findings(facts)
        said = {_news(alarm): alarm for alarm in self.last}
        found = tuple(said.get(_news(alarm), alarm) for alarm in found)
        new = {alarm for alarm in found if alarm not in self.last}
        if not new and len(found) == len(self.last):
            self.last = found
            return False
        for alarm in found:
            if alarm in new:
                logger.warning("alarm %s: %s", alarm.name, alarm.sentence)
                before = self.all[alarm.name].steps if alarm.name in self.all else 0
                self.all[alarm.name] = Alarmed(before + 1, alarm.sentence)
        for name in {alarm.name for alarm in self.last} - {alarm.name for alarm in found}:
            logger.warning("alarm %s is over", name)
        self.last = found
        return True


def _news(alarm: Finding) -> str:
    """The part of an alarm whose change is worth logging."""
    return same(alarm.sentence) if alarm.name in COUNTED else alarm.sentence
