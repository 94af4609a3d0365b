"""Leave-one-out advantages of members that a draw let go on (`rollout.prune_weight = inverse`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncrl.algorithms.advantages.advantage import (
    Advantage,
    RewardedSamples,
    Value,
    check_rewards,
    of_members,
)
from asyncrl.messages import DrawnMembers


class ByChance(Advantage):
    """For the groups of which a rule might have ended members, by draws, Horvitz and Thompson's
    estimate of the gradient of all members that were started; for others `advantage` (rloo):

        A_i = (R_i - Σ_j R_j / (q_j (n - 1))) / q_i     over the other members j that went on

    with the chance q_i with which member i went on, of n that were started. One that was ended
    counts as 0 in both sums. Its expectation over the draws is that of rloo with all of them, since
    each draw depends on nothing that comes after it. Its variance is larger (docs/rewards.md).

    >>> from asyncrl.algorithms.advantages import Rloo
    >>> from asyncrl.messages import Sample
    >>> one = Sample(9, 4, 1, 1, 1.0, [], member=0)
    >>> drawn = {4: DrawnMembers(4, [0.5, 1.0])}  # of four members two were ended
    >>> ByChance(Rloo()).of(RewardedSamples([one], {4: [1.0, 0.75]}, {}, drawn=drawn))
    [1.5]
    """

    def __init__(self, advantage: Advantage) -> None:
        self._advantage = advantage

    def of(self, batch: RewardedSamples) -> Sequence[Value]:
        """Advantage of each sample. Raises ValueError for impossible rewards or chances."""
        tables = {
            group: weighted(group, batch.rewards.get(group, ()), drawn)
            for group, drawn in batch.drawn.items()
        }
        return of_members(batch, self._advantage, tables)


def weighted(group: int, rewards: Sequence[float], drawn: DrawnMembers) -> list[float]:
    """Advantage of each member of a group that went on. Raises ValueError for rewards that are not
    finite, and chances that do not belong to these members."""
    check_rewards(group, rewards)
    chances = drawn.chances
    if not len(chances) == len(rewards) <= drawn.started or not all(0 < q <= 1 for q in chances):
        raise ValueError(
            f"group {group} has {len(rewards)} rewards, but the chances {chances} of "
            f"{drawn.started} members"
        )
    others = max(1, drawn.started - 1)
    shares = [reward / q for reward, q in zip(rewards, chances, strict=True)]
    total = math.fsum(shares)
    return [
        (reward - (total - share) / others) / q
        for reward, share, q in zip(rewards, shares, chances, strict=True)
    ]
