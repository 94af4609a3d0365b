"""Lags gathered into few bins. Invariant: every lag is in one bin, and a bin is named by the
smallest lag in it.

Each lag below 32 is a bin of its own; from there on a bin ends where the lag has doubled. So what
is kept by lag has a size that does not depend on how old a token is. No torch here: the coordinator
imports this.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping

BINS: tuple[int, ...] = (*range(32), *(2**power for power in range(5, 21)))
"""The smallest lag in each bin; the last has no end."""
_LAG = re.compile("[0-9]{1,9}")


def bin_of(lag: int) -> int:
    """The smallest lag in the bin of `lag` (>= 0)."""
    return BINS[bisect(BINS, lag) - 1]


def at_lag(name: str, lag: int) -> str:
    """Name of a metric of the tokens (or rollouts) in the bin of `lag`."""
    return f"{name}_at_lag_{bin_of(lag)}"


def of_lags(metrics: Mapping[str, float], name: str) -> dict[int, float]:
    """The values of a metric by bin, in ascending order: the inverse of `at_lag`."""
    start = f"{name}_at_lag_"
    values = {
        int(lag): value
        for key, value in metrics.items()
        if key.startswith(start) and _LAG.fullmatch(lag := key[len(start) :])
    }
    return dict(sorted(values.items()))
