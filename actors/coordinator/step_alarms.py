"""Alarms of a run's steps: what each one showed, and how many steps showed it. Invariant: an alarm
is logged when it begins, and not again while it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from asyncrl.config import Config
from asyncrl.config.losses import designed
from asyncrl.explain.alarms import Alarm, alarms
from asyncrl.explain.curve import Curve
from asyncrl.explain.response_alarms import history_alarms, response_alarms
from asyncrl.explain.summary import Alarmed

logger = logging.getLogger(__name__)

REWRITTEN = 0.1
"""Share of later calls that may be given a reply with other tokens than were sampled: an agent that
edits one reply in ten is no accident of the chat template."""


class StepAlarms:
    """The alarms of the `last` step, and those of `all`, by name."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.last: tuple[Alarm, ...] = ()
        self.all: dict[str, Alarmed] = {}

    def look(
        self,
        version: int,
        trained: int,
        discarded: Mapping[str, int],
        metrics: Mapping[str, float],
        responses: Mapping[str, float],
        curve: Curve,
    ) -> None:
        """Look at the step that made `version`: its tokens, trained and discarded by reason; the
        `metrics` that the trainer gives; those of the responses that were looked at for it, if any;
        and the run's curve before it."""
        rewards, accuracy = (  # a step that is made again knows no later ones
            {step: value for step, value in known.items() if step <= version}
            for known in (curve.rewards, curve.accuracy)
        )
        if responses:
            rewards[version] = responses["reward"]
        staleness, intended = self._config.staleness, designed(self._config.staleness)
        left_out = {reason: n for reason, n in discarded.items() if reason not in intended}
        eval_size = self._config.task.eval_size
        self._raise(
            (
                *alarms(metrics, trained, left_out, staleness),
                *response_alarms(
                    responses, staleness.alarm_truncated, rewards, accuracy, eval_size
                ),
                *history_alarms(responses, REWRITTEN),
            ),
            version,
        )

    def _raise(self, raised: tuple[Alarm, ...], version: int) -> None:
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
