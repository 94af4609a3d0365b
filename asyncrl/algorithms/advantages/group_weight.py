"""Weights of groups (`train.group_weight`): factors of the advantages of all members of a group.
Invariant: a weight depends on what was known at the group's admission, or on other members' facts
as the rule says; it is finite and not negative.

`none`    1 for each group
`paced`   p (1 - p) of the prompt's solve rate p at the admission (paced.py)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import RewardedSamples


class GroupWeight(ABC):
    """Rule for the weights of a micro-batch's groups; docs/extending.md adds one.

    A weight from `given.prompts` leaves the gradient of each prompt unbiased, and changes how much
    the prompt counts. One from `given.rewards`, the group's own, does not.

    >>> class Hard(GroupWeight):
    ...     def of(self, given):
    ...         return {group: 1 - prompt.solve_rate for group, prompt in given.prompts.items()}
    >>> from asyncrl.messages import PromptFacts
    >>> prompts = {4: PromptFacts(posterior=(1.0, 3.0))}
    >>> Hard().of(RewardedSamples([], {4: [1.0]}, {}, prompts=prompts))
    {4: 0.75}
    """

    kind: ClassVar[str] = ""

    @abstractmethod
    def of(self, given: RewardedSamples) -> Mapping[int, float]:
        """Return the weight of each group; 1 for one that is left out."""


class EqualWeight(GroupWeight):
    """1 for each group.

    >>> dict(EqualWeight().of(RewardedSamples([], {}, {})))
    {}
    """

    kind: ClassVar[str] = "none"

    def of(self, given: RewardedSamples) -> Mapping[int, float]:
        return {}


def weights_of(rule: GroupWeight, given: RewardedSamples) -> Mapping[int, float]:
    """The weight of each group that the rule does not leave out. Raises ValueError for one that is
    no finite number, or negative.

    >>> weights_of(EqualWeight(), RewardedSamples([], {}, {}))
    {}
    """
    weights = dict(rule.of(given))
    for group, value in weights.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise ValueError(
                f"the weight of group {group} is {value!r}; return a finite number of at least 0"
            )
    return weights
