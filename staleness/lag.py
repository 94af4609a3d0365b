"""How old tokens are. Invariant: there is one definition of lag, per token: `step - version`.

`step` is the step being trained, which makes version `step + 1`; a token sampled under the version
the step starts from has lag 0. Spans tile the response, so whatever is said of tokens follows from
them alone. No torch here: the coordinator imports this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from asyncrl.ipc.messages import Span


class LagSums(NamedTuple):
    """Lag of a set of tokens, in versions, as sums that add up over rollouts: token count, sum of
    lags, largest lag."""

    tokens: int = 0
    total: int = 0
    largest: int = 0

    def merge(self, other: LagSums) -> LagSums:
        """The sums of both sets."""
        return LagSums(
            self.tokens + other.tokens, self.total + other.total, max(self.largest, other.largest)
        )

    @property
    def mean(self) -> float:
        """Mean lag of a token; 0 where there is none."""
        return self.total / self.tokens if self.tokens else 0.0


def _lags(spans: Iterable[Span], step: int) -> Iterable[tuple[int, int]]:
    """(lag, tokens) of each span. Raises ValueError where a token is younger than the policy it is
    to train."""
    for span in spans:
        lag = step - span.version
        if lag < 0:
            raise ValueError(
                f"a token of version {span.version} is newer than the policy that step {step} "
                "starts from"
            )
        yield lag, span.end - span.start


def rollout_lag(spans: Sequence[Span], step: int) -> int:
    """Lag of a rollout: its largest token lag, 0 for an empty response."""
    return max((lag for lag, tokens in _lags(spans, step) if tokens), default=0)


def fresh_mask(spans: Sequence[Span], step: int, max_lag: int) -> bytes:
    """One `uint8` a response token: 1 where its lag is at most `max_lag`, else 0."""
    return b"".join(
        (b"\x01" if lag <= max_lag else b"\x00") * tokens for lag, tokens in _lags(spans, step)
    )


def stale_tokens(spans: Sequence[Span], step: int, max_lag: int) -> int:
    """How many tokens have a lag over `max_lag`."""
    return sum(tokens for lag, tokens in _lags(spans, step) if lag > max_lag)


def tokens_by_lag(spans: Sequence[Span], step: int) -> Counter[int]:
    """Number of tokens at each lag."""
    counts: Counter[int] = Counter()
    for lag, tokens in _lags(spans, step):
        if tokens:
            counts[lag] += tokens
    return counts


def lag_sums(counts: Counter[int]) -> LagSums:
    """Sums over the tokens that `tokens_by_lag` counted."""
    return LagSums(
        sum(counts.values()),
        sum(lag * tokens for lag, tokens in counts.items()),
        max(counts, default=0),
    )
