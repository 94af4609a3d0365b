"""Failures of answers, episodes or requests, counted by reason, and the common reason, if there is
one, why all have failed so far. Pure: it is given the time.

Invariant: after one success, or with reasons of which none has MOST of the failures, nothing here
ends a run. Else a run is over when more attempts cannot be expected to do better
(`asyncrl.runtime.reasons`):

    program   after `program` attempts, of several groups: code that cannot work
    data      after `data` attempts, and `data_s` seconds after the first failure: the answers of a
              weak model may all be such that a verifier cannot read them
    outside   after `program` attempts, and OUTSIDE_S after the first failure: a server may be
              starting, a network may come back
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from asyncrl.runtime.reasons import cause_of, form_of, same

OUTSIDE_S = 300.0
"""Seconds for which something outside the run may be unavailable."""
MOST = 0.9
"""The smallest share of the failures that a common reason has."""
LOOK_S = 5.0
"""Seconds between groups that test whether it is back."""
GROUPS = 3
"""Groups whose attempts must have failed: one prompt may be at fault."""
KINDS = 64
"""Reasons that are counted separately; further ones are counted together."""
OTHERS = "other reasons"
OFTEN = (1, 10, 100, 1000, 10_000, 100_000)
"""Counts of a reason at which it is logged."""
BURST, LOG_S = 8, 30.0
"""Lines that are logged without delay, and the seconds between later ones."""


class FailureLimits(NamedTuple):
    """Attempts after which a common reason ends a run, and seconds (see above)."""

    program: int
    data: int
    data_s: float


ANSWERS = FailureLimits(program=16, data=128, data_s=0.0)
EPISODES = FailureLimits(program=8, data=14, data_s=60.0)
"""Limits for agents, which begin rarely while all fail (`agent_failures.py`)."""
REQUESTS = FailureLimits(program=16, data=16, data_s=0.0)


class Reason(NamedTuple):
    """A reason: its newest text, and how many attempts failed for it."""

    text: str
    times: int


class CommonFailure:
    """Counts attempts of one kind; `succeeded_before` says that an earlier life of the run had
    one that succeeded."""

    def __init__(self, limits: FailureLimits, *, succeeded_before: bool = False) -> None:
        self._limits = limits
        self._succeeded_before = succeeded_before
        self._reasons: dict[str, Reason] = {}
        self._forms: dict[str, Reason] = {}
        self._groups = set[int]()
        self._since = self._next = 0.0
        self._logged, self._last_log = 0, 0.0
        self.succeeded = 0
        """Attempts that succeeded."""
        self.failed = 0
        """Attempts that failed."""

    @property
    def attempts(self) -> int:
        """All attempts."""
        return self.succeeded + self.failed

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of failed attempts by reason: the newest text of each, the most frequent
        first."""
        found = sorted(self._reasons.values(), key=lambda reason: -reason.times)
        return {reason.text: reason.times for reason in found}

    @property
    def so_far(self) -> str:
        """The counts in words."""
        return f"{self.failed} of {self.attempts} so far"

    def success(self) -> None:
        """Count an attempt that succeeded."""
        self.succeeded += 1

    def failure(self, text: str, group: int, now: float) -> bool:
        """Count an attempt that failed, of a group. Returns True if its reason is to be logged: at
        its first, tenth, hundredth … failure, and at a bounded rate."""
        if not self.failed:
            self._since = now
        self.failed += 1
        if len(self._groups) < GROUPS:
            self._groups.add(group)
        _add(self._forms, form_of(text), text)
        times = _add(self._reasons, same(text), text)
        if times not in OFTEN or (self._logged >= BURST and now - self._last_log < LOG_S):
            return False
        self._logged, self._last_log = self._logged + 1, now
        return True

    def common(self) -> Reason | None:
        """The reason why all attempts have failed, or nearly all, whatever it quotes of the data;
        None if one succeeded, or there is no such reason."""
        if self._succeeded_before or self.succeeded or not self.failed:
            return None
        reason = max(self._forms.values(), key=lambda reason: reason.times)
        return reason if reason.times >= MOST * self.failed else None

    def hopeless(self, now: float) -> Reason | None:
        """The common reason, if further attempts cannot be expected to do better."""
        reason, limits = self.common(), self._limits
        if reason is None or len(self._groups) < GROUPS or reason.times < limits.program:
            return None
        waited_s = now - self._since
        match cause_of(reason.text):
            case "program":
                return reason
            case "outside":
                return reason if waited_s >= OUTSIDE_S else None
            case "data":
                enough = reason.times >= limits.data and waited_s >= limits.data_s
                return reason if enough else None

    def may_pass(self, now: float) -> bool:
        """True while all attempts fail for a reason outside the run, which may pass."""
        reason = self.common()
        outside = reason is not None and cause_of(reason.text) == "outside"
        return outside and now - self._since < OUTSIDE_S

    def paced(self, groups: int, now: float, most: int) -> int:
        """The number of these groups that may start now. While all fail for a reason that may pass,
        one starts every few seconds, because generation would be wasted, and `most` groups without
        a signal end a run."""
        if self.failed < self._limits.program or not self.may_pass(now):
            return groups
        if groups <= 0 or now < self._next:
            return 0
        self._next = now + max(LOOK_S, 2 * OUTSIDE_S / most)
        return 1


def _add(reasons: dict[str, Reason], key: str, text: str) -> int:
    """Count a reason; returns how often it came."""
    if key not in reasons and len(reasons) >= KINDS:
        key = text = OTHERS
    times = reasons[key].times + 1 if key in reasons else 1
    reasons[key] = Reason(text, times)
    return times
