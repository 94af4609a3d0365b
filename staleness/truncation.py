"""Responses that are cut at their budget, as DAPO has it (arXiv 2503.14476, sections 3.4 and 4.1).

    mask        overlong filtering: the tokens of a response that was cut stay out of the loss; its
                reward stays among those that its group is compared with
    penalize    soft overlong punishment: a long response loses up to 1 of its reward, whether it
                was cut or not

Invariant: neither looks at anything but the response itself. No torch here: the coordinator imports
this.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.ipc.messages import ERROR_TOKEN, STALE_TOKEN, TRAINABLE_TOKEN, TRUNCATED_TOKEN, Span
from staleness.lag import fresh_mask

DAPO_SHARE = 5
"""The band is this part of the budget in DAPO: 4,096 of 20,480 tokens."""


def overlong_band(band: int, budget: int) -> int:
    """Return the tokens over which the punishment grows: `band`, or where that is 0 a fifth of the
    budget, 1 at least."""
    return band or max(1, budget // DAPO_SHARE)


def overlong_penalty(tokens: int, budget: int, band: int) -> float:
    """Return what is added to the reward of a response of so many tokens, in [-1, 0]: nothing up to
    `budget - band`, from there on linearly to -1 at `budget`.

    >>> [overlong_penalty(tokens, budget=20, band=4) for tokens in (1, 16, 17, 20, 21)]
    [0.0, 0.0, -0.25, -1.0, -1.0]
    """
    return -min(1.0, max(0, tokens - (budget - band)) / band) + 0.0


def loss_mask(
    spans: Sequence[Span],
    step: int,
    max_lag: int,
    *,
    truncated: bool,
    errors: Sequence[tuple[int, int]] = (),
) -> bytes:
    """Return one byte for each sampled token: 1 where it may enter the loss, else the reason why
    not. What is too old is `STALE_TOKEN`, whatever else it is; the rest of a `truncated` response
    is `TRUNCATED_TOKEN`, and what lies in `errors`, [start, end) of the sampled tokens, is
    `ERROR_TOKEN`.

    >>> loss_mask([Span(3, 0, 2), Span(4, 2, 3)], step=5, max_lag=1, truncated=True)
    b'\\x00\\x00\\x02'
    """
    mask = fresh_mask(spans, step, max_lag)
    if truncated:
        return mask.translate(_TRUNCATED)
    for start, end in errors:
        mask = mask[:start] + mask[start:end].translate(_ERROR) + mask[end:]
    return mask


def trainable_by_lag(spans: Sequence[Span], step: int, mask: bytes) -> dict[int, int]:
    """Return how many of the sampled tokens that may enter the loss have each lag. Example: of the
    mask 1 3 1, whose last token a later version sampled, each lag has one.

    >>> trainable_by_lag([Span(3, 0, 2), Span(4, 2, 3)], 5, bytes([1, 3, 1]))
    {2: 1, 1: 1}
    """
    lags, at = dict[int, int](), 0
    for span in spans:
        end = at + span.end - span.start
        if count := mask[at:end].count(TRAINABLE_TOKEN):
            lags[step - span.version] = lags.get(step - span.version, 0) + count
        at = end
    return lags


_TRUNCATED = bytes([STALE_TOKEN, TRUNCATED_TOKEN, *range(2, 256)])
_ERROR = bytes([STALE_TOKEN, ERROR_TOKEN, *range(2, 256)])
