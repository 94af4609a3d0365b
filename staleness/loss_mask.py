"""The loss mask of a rollout's sampled tokens: those that may enter the loss, and why each of the
others may not. Invariant: a token that is too old is stale, whatever else applies.

No torch here: the coordinator imports this.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.messages import ERROR_TOKEN, STALE_TOKEN, TRAINABLE_TOKEN, TRUNCATED_TOKEN, Span
from asyncrl.staleness.lag import fresh_mask


def loss_mask(
    spans: Sequence[Span],
    step: int,
    max_lag: int,
    *,
    truncated: bool,
    errors: Sequence[tuple[int, int]] = (),
    max_age: int = 0,
) -> bytes:
    """Return one byte for each sampled token: 1 where it may enter the loss, else the reason why
    not. A token that is too old (by its lag, a foreign one by its age) is `STALE_TOKEN`, whatever
    else applies; the rest of a `truncated` response is `TRUNCATED_TOKEN`, and what lies in
    `errors`, [start, end) of the sampled tokens, is `ERROR_TOKEN`.

    >>> loss_mask([Span(3, 0, 2), Span(4, 2, 3)], step=5, max_lag=1, truncated=True)
    b'\\x00\\x00\\x02'
    """
    mask = fresh_mask(spans, step, max_lag, max_age)
    if truncated:
        return mask.translate(_TRUNCATED)
    for start, end in errors:
        mask = mask[:start] + mask[start:end].translate(_ERROR) + mask[end:]
    return mask


def trainable_by_lag(spans: Sequence[Span], step: int, mask: bytes) -> dict[int, int]:
    """Return how many of the run's own tokens that may enter the loss have each lag. Example: of
    the mask 1 3 1, whose last token a later version sampled, each lag has one.

    >>> trainable_by_lag([Span(3, 0, 2), Span(4, 2, 3)], 5, bytes([1, 3, 1]))
    {2: 1, 1: 1}
    """
    lags, at = dict[int, int](), 0
    for span in spans:
        end = at + span.end - span.start
        count = mask[at:end].count(TRAINABLE_TOKEN)
        if count and span.source == "own":
            lags[step - span.version] = lags.get(step - span.version, 0) + count
        at = end
    return lags


_TRUNCATED = bytes([STALE_TOKEN, TRUNCATED_TOKEN, *range(2, 256)])


_ERROR = bytes([STALE_TOKEN, ERROR_TOKEN, *range(2, 256)])
