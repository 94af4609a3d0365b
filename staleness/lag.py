"""Lag of tokens, in versions. Invariant: there is one definition, per token: `step - version`.

`step` is the step that trains the token. It starts from version `step` and makes version
`step + 1`, so a token that was sampled under the version the step starts from has lag 0. Spans
tile the response, so everything about tokens follows from them. Foreign tokens, which no version of
the run has sampled now, have no lag but an *age* of the same form, with a bound of its own.

Example: the spans [0, 10) of version 3 and [10, 15) of version 4 have lags 2 and 1 in step 5.

No torch here: the coordinator imports this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from asyncrl.messages import Span


def _lags(spans: Iterable[Span], step: int) -> Iterable[tuple[int, int]]:
    """Yield (lag, tokens) of each span of the run's own. Raises ValueError where a token is younger
    than the policy that it is to train."""
    for span in own_spans(spans):
        lag = step - span.version
        if lag < 0:
            raise ValueError(
                f"a token of version {span.version} is newer than the policy that step {step} "
                "starts from"
            )
        yield lag, span.end - span.start


def own_spans(spans: Iterable[Span]) -> Iterable[Span]:
    """Return the spans that the run's policy has sampled.

    >>> [span.version for span in own_spans([Span(3, 0, 2), Span(1, 2, 4, "pool")])]
    [3]
    """
    return (span for span in spans if span.source == "own")


def rollout_lag(spans: Sequence[Span], step: int) -> int:
    """Return the largest lag of its tokens; 0 for an empty response."""
    return max((lag for lag, tokens in _lags(spans, step) if tokens), default=0)


def fresh_mask(spans: Sequence[Span], step: int, max_lag: int, max_age: int = 0) -> bytes:
    """Return one `uint8` for each response token: 1 where its lag is at most `max_lag`, or, of a
    foreign one, its age at most `max_age`; else 0. Raises ValueError where a token is younger than
    the policy that it is to train.

    Example: spans of 2 tokens of version 3 and 1 of version 4 give 0, 0, 1 for step 5 and
    `max_lag` 1.
    """
    mask = bytearray()
    for span in spans:
        if span.version > step:
            raise ValueError(
                f"a token of version {span.version} is newer than the policy that step {step} "
                "starts from"
            )
        most = max_lag if span.source == "own" else max_age
        mask += bytes([step - span.version <= most]) * (span.end - span.start)
    return bytes(mask)


def tokens_by_lag(spans: Sequence[Span], step: int) -> Counter[int]:
    """Return the number of tokens at each lag."""
    counts: Counter[int] = Counter()
    for lag, tokens in _lags(spans, step):
        if tokens:
            counts[lag] += tokens
    return counts
