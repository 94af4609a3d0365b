"""Responses that are cut at their budget, as in DAPO (arXiv 2503.14476, sections 3.4 and 4.1).

    mask        overlong filtering: the tokens of a response that was cut stay out of the loss; its
                reward still counts in its group's comparison (`staleness/loss_mask.py`)
    penalize    soft overlong punishment: a long response loses up to 1 of its reward, cut or not

Invariant: both depend only on the response itself. No torch here: the coordinator imports this.
"""

from __future__ import annotations

DAPO_SHARE = 5
"""The band as a share of the budget, from DAPO: 4,096 of 20,480 tokens."""


def overlong_band(band: int, budget: int) -> int:
    """Return the tokens over which the punishment grows: `band`, or where that is 0 a fifth of the
    budget, at least 1."""
    return band or max(1, budget // DAPO_SHARE)


def overlong_penalty(tokens: int, budget: int, band: int) -> float:
    """Return the addition to the reward of a response with this many tokens, in [-1, 0]: 0 up to
    `budget - band`, from there on linearly to -1 at `budget`.

    >>> [overlong_penalty(tokens, budget=20, band=4) for tokens in (1, 16, 17, 20, 21)]
    [0.0, 0.0, -0.25, -1.0, -1.0]
    """
    return -min(1.0, max(0, tokens - (budget - band)) / band) + 0.0
