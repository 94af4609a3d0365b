"""Watches whether a judge on a server gives verdicts. Pure: it hears of each verdict.

Invariant: an outage is seen within some answers, however long the run is, and so is its end.
"""

from __future__ import annotations

from collections import Counter, deque

LAST = 32
"""Verdicts that are looked at."""
LEAST = 4
"""The fewest verdicts for a share."""
KIND = "judge "
"""Prefix of the reasons why a judge gave no verdict."""


class JudgeWatch:
    """The reasons of the last verdicts.

    >>> watch = JudgeWatch()
    >>> for reason in ("", "timeout", "judge rate limited: 429", "judge rate limited: 429"):
    ...     watch.note(reason)
    >>> watch.missed, watch.why
    (0.5, 'judge rate limited: 429')
    """

    def __init__(self) -> None:
        self._last = deque[str](maxlen=LAST)

    def note(self, reason: str) -> None:
        """Note a verdict: the reason why there is none, or an empty text."""
        self._last.append(reason if reason.startswith(KIND) else "")

    @property
    def missed(self) -> float:
        """Share of the last answers to which the judge gave no verdict, 0 to 1."""
        if len(self._last) < LEAST:
            return 0.0
        return sum(map(bool, self._last)) / len(self._last)

    @property
    def why(self) -> str:
        """The most frequent reason of those; empty if there are none."""
        if not any(self._last):
            return ""
        return Counter(filter(None, self._last)).most_common(1)[0][0]
