"""Alarms of what lies outside of a run: its disk, and its judge. Invariant: an alarm is logged when
it begins and each time that it says something else, and once more when it is over.
"""

from __future__ import annotations

import logging

from asyncrl.explain.conditions.condition import Finding, RunFacts
from asyncrl.explain.conditions.table import findings
from asyncrl.explain.summary import Alarmed

logger = logging.getLogger(__name__)


class OutsideAlarms:
    """The alarms of now (`last`), and those of `all`, by name: how often each said something
    new."""

    def __init__(self) -> None:
        self.last: tuple[Finding, ...] = ()
        self.all: dict[str, Alarmed] = {}

    def look(self, facts: RunFacts) -> bool:
        """Look at the facts of the disk. Returns True if the alarms have changed."""
        found = findings(facts)
        if found == self.last:
            return False
        for alarm in found:
            if alarm not in self.last:
                logger.warning("alarm %s: %s", alarm.name, alarm.sentence)
                before = self.all[alarm.name].steps if alarm.name in self.all else 0
                self.all[alarm.name] = Alarmed(before + 1, alarm.sentence)
        for name in {alarm.name for alarm in self.last} - {alarm.name for alarm in found}:
            logger.warning("alarm %s is over", name)
        self.last = found
        return True
