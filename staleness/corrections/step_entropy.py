"""A mask for the turns in which the policy hesitates."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens, sum_by_rollout
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep


class StepEntropy(Correction, frozen=True):
    """Keep the `share` of turns of the largest mean entropy, and reject the others (DART, arXiv
    2509.23866: steps of an agent above the quantile 0.2). The mean is over a turn's tokens in the
    mask, and the share is of all turns that are updated with together; turns of the same mean as
    the last one kept are kept. Where no agent plays, a response is one turn.

    Turns of one, two and one tokens, with means of 2.0, 0.6 and 0.5:

    >>> import torch
    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[1.0] * 4, sample_index=[0, 0, 0, 1])._replace(
    ...     entropy=torch.tensor([2.0, 0.2, 1.0, 0.5]), turn=torch.tensor([0, 1, 1, 0])
    ... )
    >>> StepEntropy(share=0.6).apply(some, some.mask).kept.tolist()
    [True, True, True, False]
    """

    kind: ClassVar[str] = "step_entropy"
    reads: ClassVar[frozenset[str]] = frozenset({"entropy", "turn"})
    whole_step: ClassVar[bool] = True
    by_design: ClassVar[bool] = True

    share: Annotated[float, Meta(gt=0, le=1, description="share of the turns that is kept")] = 0.8

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        assert tokens.entropy is not None and tokens.turn is not None
        if not mask.any():
            return keep(mask, {})
        of_turn = tokens.sample_index * (tokens.turn.max() + 1) + tokens.turn
        sums = sum_by_rollout(tokens.entropy, mask, of_turn)
        means = sums.mean[sums.tokens > 0].sort(descending=True).values
        least = means[max(1, math.ceil(self.share * len(means) - 1e-9)) - 1]
        return keep(mask & (sums.mean[of_turn] >= least), {})
