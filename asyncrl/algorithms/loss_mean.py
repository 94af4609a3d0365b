"""The mean of the tokens' losses over a step. Invariant: parts are additive, so that a step may be
split, and the sum is divided once.

    token       each token counts alike: the sum over all tokens, divided by their number (DAPO,
                arXiv 2503.14476, eq. 8)
    rollout     each rollout counts alike: its own mean, and the mean of these over the rollouts
                (GRPO, arXiv 2402.03300; GSPO, arXiv 2507.18071)
    constant    the sum over all tokens, divided by the rollouts times the tokens that one may have
                (Dr. GRPO, arXiv 2503.20783): the divisor does not depend on lengths

Where an episode's branches count whole (`train.branches`), a token counts once for each branch that
contains it, in the sum and in the number: that is the mean over the tokens of all branches, as if
each were a separate sequence. This holds only for a mean over tokens.

A rollout without a counted token is not counted. A rollout of several sequences (an episode of an
agent) counts as much as one with a single sequence: each sequence counts by its share of the
tokens.

Only methods of tensors are called here, so that importing this needs no torch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import sum_by_rollout

Mean = Literal["token", "rollout", "constant"]


class MeanWeights(NamedTuple):
    """`of_token`: float32 [tokens], the factor of a token's loss. `divisor`: these tokens' part of
    the divisor of the step's sum.

    >>> import torch
    >>> MeanWeights(torch.tensor([0.5, 0.5, 1.0]), 2.0).divisor
    2.0
    """

    of_token: Tensor
    divisor: float


def mean_weights(
    mean: Mean,
    counted: Tensor,
    sample_index: Tensor,
    share: Tensor,
    budget: int,
    leaves: Tensor | None = None,
) -> MeanWeights:
    """Weights of the tokens of some whole sequences. `counted` (bool [tokens]) are the tokens that
    count in the divisor, `sample_index` (int64 [tokens]) is the sequence of each, `share` (float32
    [sequences]) the share of each in its rollout, `budget` >= 1 the number of tokens that a rollout
    may have, and `leaves` (float32 [tokens]) the number of times that a token counts in a mean over
    tokens; None: once. Raises ValueError for leaves in another mean.

    Two rollouts, of three tokens and of one:

    >>> import torch
    >>> counted, whose = torch.ones(4, dtype=torch.bool), torch.tensor([0, 0, 0, 1])
    >>> for mean in ("token", "rollout", "constant"):
    ...     found = mean_weights(mean, counted, whose, torch.ones(2), budget=10)
    ...     print(mean, [round(weight, 2) for weight in found.of_token.tolist()], found.divisor)
    token [1.0, 1.0, 1.0, 1.0] 4.0
    rollout [0.33, 0.33, 0.33, 1.0] 2.0
    constant [1.0, 1.0, 1.0, 1.0] 20.0
    """
    if leaves is not None:
        if mean != "token":
            raise ValueError(
                f"branches count whole only in a mean over tokens, but this is {mean!r}"
            )
        return MeanWeights(leaves, float(leaves.double()[counted].sum()))
    tokens = sum_by_rollout(counted.double(), counted, sample_index).tokens
    share = share[: len(tokens)].to(tokens)
    rollouts = float(share[tokens > 0].sum())
    each = (share / tokens.clamp(min=1))[sample_index].float()
    match mean:
        case "token":
            return MeanWeights(each.new_ones(each.shape), float(tokens.sum()))
        case "rollout":
            return MeanWeights(each, rollouts)
        case "constant":
            return MeanWeights(each.new_ones(each.shape), rollouts * budget)
