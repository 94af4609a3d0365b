"""Alarms of a run's steps: what each one showed, and how many steps showed it. Invariant: an alarm
is logged when it begins, and not again while it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from asyncrl.config import Config
from asyncrl.config.losses import designed
from asyncrl.explain.conditions.condition import Finding, RunFacts
from asyncrl.explain.conditions.table import findings
from asyncrl.explain.curve import Curve
from asyncrl.explain.summary import Alarmed, JudgedAnswers
from asyncrl.messages import LastRank

logger = logging.getLogger(__name__)


class StepAlarms:
    """The alarms of the `last` step, and those of `all`, by name."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.last: tuple[Finding, ...] = ()
        self.all: dict[str, Alarmed] = {}
        self._answers = self._before = JudgedAnswers()  # now, and at the step before

    def judged(self, answers: JudgedAnswers) -> None:
        """Note the answers that were judged so far."""
        self._answers = answers

    def look(
        self,
        version: int,
        trained: int,
        discarded: Mapping[str, int],
        metrics: Mapping[str, float],
        responses: Mapping[str, float],
        curve: Curve,
        last_rank: LastRank | None = None,
    ) -> None:
        """Look at the step that made `version`: its tokens, trained and discarded by reason; the
        `metrics` that the trainer gives; those of the responses that were looked at for it, if any;
        the run's curve before it; and the rank that others waited for."""
        rewards, accuracy = (  # a step that is made again knows no later ones
            {step: value for step, value in known.items() if step <= version}
            for known in (curve.rewards, curve.accuracy)
        )
        if responses:
            rewards[version] = responses["reward"]
        judged = self._answers.since(self._before)
        intended = designed(self._config.staleness)
        facts = RunFacts(
            metrics={**metrics, **responses},
            trained=trained,
            left_out={reason: n for reason, n in discarded.items() if reason not in intended},
            rewards=rewards,
            accuracy=accuracy,
            answers=judged.answers,
            unjudged=judged.without,
            unjudged_reason=judged.reason,
            prompts=curve.asked,
            last_rank=last_rank,
        )
        self._before = self._answers
        self._raise(findings(facts), version)

    def _raise(self, raised: tuple[Finding, ...], version: int) -> None:
        before = {alarm.name for alarm in self.last}
        for alarm in raised:
            if alarm.name not in before:
                logger.warning(
                    "alarm %s in the step that made version %d: %s",
                    alarm.name,
                    version,
                    alarm.sentence,
                )
            steps = self.all[alarm.name].steps if alarm.name in self.all else 0
            self.all[alarm.name] = Alarmed(steps + 1, alarm.sentence)
        self.last = raised
