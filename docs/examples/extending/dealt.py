"""dealt.py: groups that came one after another are in different minibatches."""

from asyncrl.algorithms.minibatches.minibatch_rule import MinibatchRule
from asyncrl.algorithms.tensors import Tensor


class Dealt(MinibatchRule):
    """Deal the groups as cards: so each minibatch has early ones and late ones."""

    def numbers(self, groups: Tensor, turns: Tensor, count: int) -> Tensor:
        return groups % count
