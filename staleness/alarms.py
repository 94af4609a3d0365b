"""What is wrong with a step, by its cause. Invariant: an alarm names one cause and says what to do about it; a step in its bands has none.

Two causes make two policies differ. Where engine and trainer compute the same weights differently, tokens of lag 0 differ already; age
adds to that with every version. So it is the numbers by lag that tell them apart. No torch here: the coordinator imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asyncrl.config.schema import Staleness


class Alarm(NamedTuple):
    """`name` is the cause, in one word for metrics and logs; `sentence` says what was seen, why, and what to do."""

    name: str
    sentence: str


def alarms(metrics: Mapping[str, float], trained: int, discarded: Mapping[str, int], thresholds: Staleness) -> tuple[Alarm, ...]:
    """Alarms of one step, none where all is well.

    `metrics` are the trainer's: `k3`, `ess`, and by lag (named by `staleness.bins.at_lag`) `tokens`, `k3`, `kept_fraction`, `rollouts` and
    `ess`. `trained` and `discarded` are the tokens of the step by what became of them. The bands are `alarm_k3`, `alarm_masked` and
    `alarm_ess`; a log-probability that is no number is never in its band.
    """
    raise NotImplementedError
