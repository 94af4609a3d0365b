"""Minibatches by turn, the last turns first, as in SeeUPO."""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.minibatches.minibatch_rule import MinibatchRule
from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tensors import Tensor


class SeeUpo(MinibatchRule):
    """One update for each turn, in reverse order (SeeUPO, as its code in AgentEvolver has it).

    When turn t is trained, later turns have changed. Their effect on the reward is counted by `M`,
    the ratio of the new policy to that at the start of the step over the rollout's later turns: the
    advantages of a turn are multiplied by `M`, which starts at 1, and after the update of a turn is
    `clip(M clip(exp(mean log-ratio), 1 ± 0.2), 1 ± 0.2)`. With the whole ratio in the place of the
    mean's, and without clips, the gradient of each turn is exact.

    Three turns; then the last one's ratio of two rollouts is e^0.1 and 2:

    >>> import torch
    >>> groups = torch.zeros(4, dtype=torch.int64)
    >>> SeeUpo().numbers(groups, torch.tensor([0, 1, 2, 0]), 1).tolist()
    [2, 1, 0, 2]
    >>> SeeUpo().carried(torch.ones(2), torch.tensor([0.1, 0.69])).tolist()
    [1.1051709651947021, 1.2000000476837158]
    """

    kind: ClassVar[str] = "seeupo"
    by_turn: ClassVar[bool] = True
    bound: ClassVar[float] = 0.2

    def numbers(self, groups: Tensor, turns: Tensor, count: int) -> Tensor:
        return turns.max() - turns

    def carried(self, factors: Tensor, log_ratio: Tensor) -> Tensor:
        lo, hi = 1 - self.bound, 1 + self.bound
        return (factors * ratio(log_ratio).clamp(lo, hi)).clamp(lo, hi)
