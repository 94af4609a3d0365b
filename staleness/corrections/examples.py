"""Small batches of tokens for the examples of docstrings and of docs/extending.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncrl.algorithms.tokens import Tokens


def tokens(
    ratios: Sequence[float],
    *,
    sample_index: Sequence[int] | None = None,
    advantage: Sequence[float] | None = None,
    behaviour: Sequence[float] | None = None,
    lag: Sequence[int] | None = None,
) -> Tokens:
    """Tokens of these ratios of current to behaviour policy, without a proximal policy between
    them. Defaults: each is a rollout of its own, with advantage 1, behaviour log-probability -1 and
    lag 0, in the mask.

    >>> tokens(ratios=[1.0, 2.0], lag=[0, 3]).lag.tolist()
    [0, 3]
    """
    import torch

    count = len(ratios)
    log = torch.tensor([math.log(ratio) for ratio in ratios])
    before = torch.tensor([-1.0] * count if behaviour is None else behaviour)
    return Tokens(
        log_ratio=log,
        mismatch=log,
        current=before + log,
        behaviour=before,
        advantage=torch.tensor([1.0] * count if advantage is None else advantage),
        lag=torch.tensor([0] * count if lag is None else lag),
        sample_index=torch.tensor(list(range(count) if sample_index is None else sample_index)),
        mask=torch.ones(count, dtype=torch.bool),
    )
