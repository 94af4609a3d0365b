"""The attempts of agents that failed one after another. Invariant: an agents actor whose agents all
fail begins an episode at least every `LONGEST_S` seconds, and is never paused so long that the run
would look stalled (`EpisodePlacement`).

The first `FREE` that fail in a row cost nothing: agents fail now and then. After that, episodes
begin one at a time, with a delay after the last failure in seconds: 1, 2, 4, …, `LONGEST_S`. One
attempt that is played to its end resets this.
"""

from __future__ import annotations

FREE = 8
LONGEST_S = 60.0


def delay_s(failures: int, longest_s: float = LONGEST_S) -> float:
    """Seconds from the last of this many failures in a row until another episode begins.

    >>> [delay_s(failures) for failures in (7, 8, 9, 10, 99)]
    [0.0, 1.0, 2.0, 4.0, 60.0]
    """
    return 0.0 if failures < FREE else min(longest_s, 2.0 ** min(failures - FREE, 10))


class AgentFailures:
    """The failures at one agents actor since an attempt was played to its end. `reason` is that of
    the last one; `since` and `until` are the seconds on the run's clock between which no episode
    begins, at most `longest_s`."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self.count, self.reason = 0, ""
        self.since = self.until = 0.0

    def failed(self, reason: str, now: float) -> None:
        """Count another failed attempt."""
        self.count, self.reason = self.count + 1, reason
        self._put_off(now)

    def begins(self, now: float) -> None:
        """Note that an episode begins: while all fail, one at a time."""
        self._put_off(now)

    def delays(self, now: float) -> bool:
        """True if no episode may begin yet."""
        return now < self.until

    def _put_off(self, now: float) -> None:
        self.since, self.until = now, now + delay_s(self.count, self._longest_s)
