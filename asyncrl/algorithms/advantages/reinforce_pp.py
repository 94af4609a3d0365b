"""Advantages relative to all members of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import (
    Lengths,
    MemberAdvantage,
    Parts,
    Rewards,
    check_rewards,
)
from asyncrl.algorithms.advantages.normalization import all_equal, centred, normalized


class Gdpo(MemberAdvantage):
    """`(R_j - mean) / std` in the group for each part j by itself, summed over the parts, and the
    sums normalized by their mean and std over all members of the step (arXiv 2601.05242). A group
    without parts has its reward as the only one. In a subclass `weights` has the paper's weight of
    each part in the sum:

        class Mine(Gdpo):
            weights = (1.0, 0.5)

    One group, of two parts: the second part, which one member has, counts more.

    >>> rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    >>> found = Gdpo().of_members({4: [1.0, 1.0, 1.0, 0.0]}, {4: rows}, {})
    >>> [round(value, 2) for value in found[4]]
    [0.4, 0.69, 0.4, -1.49]
    """

    kind: ClassVar[str] = "gdpo"
    whole_step: ClassVar[bool] = True
    needs_member: ClassVar[bool] = True
    several_rewards: ClassVar[bool] = True
    weights: ClassVar[Sequence[float]] = ()

    def of_members(
        self, rewards: Rewards, parts: Parts, lengths: Lengths
    ) -> dict[int, list[float]]:
        columns = {
            group: _columns(group, members, parts.get(group, ()))
            for group, members in rewards.items()
        }
        sums = [
            math.fsum(map(mul, row, self._weights(len(row))))
            for of_group in columns.values()
            for row in zip(*map(normalized, of_group), strict=True)
        ]
        table = _by_group(rewards, normalized(sums))
        # The sums of a group, and of all groups, are 0 on average, but not to the last digit, and
        # no signal must be exactly 0.
        silent = {group for group, of_group in columns.items() if all(map(all_equal, of_group))}
        return {
            group: [0.0] * len(values) if group in silent else values
            for group, values in table.items()
        }

    def _weights(self, parts: int) -> Sequence[float]:
        if self.weights and parts > 1 and len(self.weights) != parts:
            raise ValueError(
                f"{self.kind} has {len(self.weights)} weights, and a reward has {parts} parts; "
                "give one weight for each"
            )
        return self.weights if self.weights and parts > 1 else (1.0,) * parts


class ReinforcePp(MemberAdvantage):
    """`(R - mean) / std` over all tokens of the step, whatever their group: a rollout counts once
    for each of its tokens (REINFORCE++, arXiv 2501.03262, without its KL term; verl whitens the
    same way).

    >>> ReinforcePp().of_members({4: [0.0, 2.0], 7: [4.0]}, {}, {4: [1, 1], 7: [1]})
    {4: [-1.0, 0.0], 7: [1.0]}
    """

    kind: ClassVar[str] = "reinforce_pp"
    whole_step: ClassVar[bool] = True
    equal_has_signal: ClassVar[bool] = True

    def of_members(
        self, rewards: Rewards, parts: Parts, lengths: Lengths
    ) -> dict[int, list[float]]:
        return _whitened(rewards, lengths)


class ReinforcePpBaseline(MemberAdvantage):
    """`R - mean` of the group, and that whitened over all tokens of the step (REINFORCE++-baseline,
    arXiv 2501.03262).

    >>> lengths = {4: [1, 1], 7: [1, 1]}
    >>> found = ReinforcePpBaseline().of_members({4: [0.0, 2.0], 7: [4.0, 4.0]}, {}, lengths)
    >>> [round(value, 2) for value in found[4] + found[7]]
    [-1.22, 1.22, 0.0, 0.0]
    """

    kind: ClassVar[str] = "reinforce_pp_baseline"
    whole_step: ClassVar[bool] = True

    def of_members(
        self, rewards: Rewards, parts: Parts, lengths: Lengths
    ) -> dict[int, list[float]]:
        return _whitened({group: centred(members) for group, members in rewards.items()}, lengths)


def _whitened(values: Rewards, lengths: Lengths) -> dict[int, list[float]]:
    """`(value - mean) / std` over tokens, of which each member has as many as `lengths` says."""
    for group, of_group in values.items():
        if len(lengths.get(group, ())) != len(of_group):
            raise ValueError(
                f"group {group} has {len(of_group)} rewards, but lengths came of "
                f"{len(lengths.get(group, ()))} members"
            )
    every = [value for members in values.values() for value in members]
    counts = [count for group in values for count in lengths[group]]
    return _by_group(values, normalized(every, counts))


def _by_group(rewards: Rewards, values: Sequence[float]) -> dict[int, list[float]]:
    """`values` of all members, one group after the other, split into groups again."""
    source = iter(values)
    return {group: [next(source) for _ in members] for group, members in rewards.items()}


def _columns(
    group: int, rewards: Sequence[float], parts: Sequence[Sequence[float]]
) -> list[Sequence[float]]:
    """The rewards of a group for each part; its own rewards where there are no parts."""
    if not any(parts):
        return [rewards]
    if len(parts) != len(rewards) or len(set(map(len, parts))) > 1:
        raise ValueError(
            f"group {group} has {len(rewards)} rewards, of {[len(row) for row in parts]} parts; "
            "all must have equally many"
        )
    columns: list[Sequence[float]] = list(zip(*parts, strict=True))
    for column in columns:
        check_rewards(group, column)
    return columns
