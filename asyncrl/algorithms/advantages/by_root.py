"""Leave-one-root-out advantages of rollouts that forked (`rollout.fork`). Invariant: the baseline
of a token depends on nothing that its own tree did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from asyncrl.algorithms.advantages.advantage import (
    Advantage,
    RewardedSamples,
    Value,
    check_rewards,
    of_members,
)
from asyncrl.messages import ForkedMembers


class ByRoot(Advantage):
    """For groups whose members might have forked, the sum over all leaves that a token led to; for
    others `advantage` (rloo):

        A(token) = Σ_i w_i (R_i - b)     over the members i that have the token
        b        = the mean over the other trees of Σ w R / Σ w of their members

    with the leaves w_i that member i stands for, which a fork halves, so that they add up to those
    of its root. So each token is trained once, and a leaf counts for what its branch is worth, in
    whichever depth it left the others: where trees are full that is 1. As a fork is decided by what
    comes before it, the expectation is the gradient times the leaves of all roots, whatever the
    rule, and the lengths of responses. A tree without others has no baseline, and no signal.

    >>> from asyncrl.messages import Sample
    >>> from asyncrl.algorithms.advantages import Rloo
    >>> first = Sample(9, 4, 1, 6, 1.0, [], member=0)  # member 2 has its first 4 tokens, too
    >>> trees = {4: ForkedMembers([0, 1, 0], [1, 2, 1], [[(2, 4)], [], []])}
    >>> ByRoot(Rloo()).of(RewardedSamples([first], {4: [1.0, 0.25, 0.5]}, {}, forked=trees))
    [[1.0, 0.75]]
    """

    def __init__(self, advantage: Advantage) -> None:
        self._advantage = advantage

    def of(self, batch: RewardedSamples) -> Sequence[Value]:
        """Advantages of the stretches of each sample, between the places where others leave it.
        Raises ValueError for impossible rewards or trees."""
        tables = {
            group: by_stretch(group, batch.rewards.get(group, ()), forked)
            for group, forked in batch.forked.items()
        }
        return of_members(batch, self._advantage, tables)


def by_stretch(group: int, rewards: Sequence[float], forked: ForkedMembers) -> list[list[float]]:
    """Advantage of each stretch of each member of a group. Raises ValueError for rewards that are
    not finite, and trees that are not of these members."""
    check_rewards(group, rewards)
    trees, leaves, below = forked.trees, forked.leaves, forked.below
    if not len(rewards) == len(trees) == len(leaves) == len(below) or min(leaves) < 1:
        raise ValueError(f"group {group} has {len(rewards)} rewards, but other members in {forked}")
    if any(not 0 <= n < len(rewards) or own < 1 for row in below for n, own in row):
        raise ValueError(f"group {group} has members that share tokens with none: {forked}")
    sums, weights = defaultdict[int, float](float), defaultdict[int, int](int)
    for tree, reward, count in zip(trees, rewards, leaves, strict=True):
        sums[tree] += count * reward
        weights[tree] += count
    means = {tree: total / weights[tree] for tree, total in sums.items()}
    others = {tree: [mean for other, mean in means.items() if other != tree] for tree in means}
    own = [
        count * (reward - math.fsum(others[tree]) / len(others[tree])) if others[tree] else 0.0
        for tree, reward, count in zip(trees, rewards, leaves, strict=True)
    ]
    return [
        [
            own[member] + math.fsum(own[other] for other, tokens in row if tokens >= end)
            for end in [*(end for end, _ in stretches(row)), math.inf]
        ]
        for member, row in enumerate(below)
    ]


def stretches(below: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches of a member's own sampled tokens, but for the last one: where each ends, and
    its tokens.

    >>> stretches([(2, 8), (5, 12), (4, 8)])
    [(8, 8), (12, 4)]
    """
    ends = sorted({tokens for _, tokens in below})
    return [(end, end - before) for before, end in zip([0, *ends], ends, strict=False)]
