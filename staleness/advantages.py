"""How much better a rollout did than its group. Invariant: only members with a verdict count, and a group is known by its id."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

STD_FLOOR = 1e-4
"""Smallest standard deviation divided by, in units of reward."""


def grpo(rewards: Sequence[float], groups: Sequence[int], members: Mapping[int, Sequence[float]]) -> torch.Tensor:
    """Group-relative advantages `(R - mean) / max(std, STD_FLOOR)`, float32 of shape [samples] (GRPO, arXiv 2402.03300, section 4.1).

    `rewards[i]` and `groups[i]` are of sample i; `members[group]` has the rewards of every member of the group with a verdict, trained
    here or elsewhere, in any number. `std` is the sample standard deviation (divided by n - 1, as TRL and verl have it). A group whose
    rewards are all equal, compared exactly, has no signal: zeros. Raises ValueError for a group without members or a reward that is not
    finite.
    """
    moments = {group: _moments(group, members.get(group, ())) for group in set(groups)}
    values = [(reward - moments[group][0]) * moments[group][1] for reward, group in zip(rewards, groups, strict=True)]
    return torch.tensor(values, dtype=torch.float32)


def _moments(group: int, rewards: Sequence[float]) -> tuple[float, float]:
    """(mean, 1 / std) of one group; the scale is 0 where there is no signal."""
    if not rewards:
        raise ValueError(f"group {group} has no member with a verdict, so its samples have no advantage; leave it out of the micro-batch")
    if not all(map(math.isfinite, rewards)):
        raise ValueError(f"group {group} has a reward that is not finite; a verifier without an answer must give NoVerdict")
    mean = math.fsum(rewards) / len(rewards)
    if all(reward == rewards[0] for reward in rewards):
        return mean, 0.0
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    return mean, 1.0 / max(math.sqrt(variance), STD_FLOOR)
