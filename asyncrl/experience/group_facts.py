"""The facts of a group from which its members' advantages are computed."""

from __future__ import annotations

from typing import NamedTuple


class GroupFacts(NamedTuple):
    """One entry for each member with a reward, in the order of `Group.scored`: its reward, the
    parts of the reward (empty where verifiers give one reward), the sampled tokens, and the rewards
    of its turns (empty where no agent played)."""

    rewards: list[float]
    parts: list[list[float]]
    lengths: list[int]
    turns: list[list[float]]
