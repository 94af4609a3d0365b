"""Minibatches: which tokens of a step each of its updates trains (`train.minibatch_by`). Invariant:
each token is in one minibatch.

`group`   whole groups, equally many in each
`seeupo`  the turns of episodes, the last ones first (seeupo.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from asyncrl.algorithms.tensors import Tensor


class MinibatchRule(ABC):
    """Rule for the minibatches of a step; docs/extending.md adds one.

    `by_turn`: it divides episodes by their turns, in one pass. Then the numbers of turns say how
    many minibatches there are, and a sequence counts whole in each where it has a token.

    >>> class FirstTurnsFirst(MinibatchRule):
    ...     by_turn = True
    ...     def numbers(self, groups, turns, count):
    ...         return turns
    >>> import torch
    >>> FirstTurnsFirst().numbers(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), 1).tolist()
    [0, 1, 0]
    """

    kind: ClassVar[str] = ""
    by_turn: ClassVar[bool] = False

    @abstractmethod
    def numbers(self, groups: Tensor, turns: Tensor, count: int) -> Tensor:
        """Return the number of each token's minibatch, int64 [tokens] >= 0. Updates come in the
        order of these numbers; one that no token has is omitted. `groups` are the tokens' groups,
        by their places in the step, and `turns` their turns in their episodes, int64 [tokens], of
        at least one token. `count` is `train.minibatches`."""

    @property
    def carries(self) -> bool:
        """True if an update changes the advantages of later ones, which costs a forward pass."""
        return type(self).carried is not MinibatchRule.carried

    def carried(self, factors: Tensor, log_ratio: Tensor) -> Tensor:
        """Return the factors of the advantages of rollouts in the updates to come, float64
        [rollouts], after an update. `factors` are those before it, 1 at first. `log_ratio` is the
        mean over a rollout's tokens of this minibatch of what the step has added to their
        log-probabilities, 0 where it has none."""
        return factors


class ByGroup(MinibatchRule):
    """`count` minibatches of equally many groups, up to one, in the order of the groups.

    >>> import torch
    >>> ByGroup().numbers(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 3, 0, 1]), 2).tolist()
    [0, 0, 1, 1]
    """

    kind: ClassVar[str] = "group"

    def numbers(self, groups: Tensor, turns: Tensor, count: int) -> Tensor:
        return groups * count // (groups.max() + 1)
