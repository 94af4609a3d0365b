"""Weight of a prompt by its solve rate, as in PACED."""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import RewardedSamples
from asyncrl.algorithms.advantages.group_weight import GroupWeight


class Paced(GroupWeight):
    """`p (1 - p)` (PACED, its weight p^a (1 - p)^b with a = b = 1): most where half of the rollouts
    solve the prompt, and little where nearly none or all do.

    p is the mean of the posterior from earlier visits, fixed at the group's admission. The authors
    estimate it once, before training. A prompt without visits has p = 1/2.

    >>> from asyncrl.messages import PromptFacts
    >>> prompts = {4: PromptFacts(), 7: PromptFacts(posterior=(1.0, 9.0))}
    >>> Paced().of(RewardedSamples([], {}, {}, prompts=prompts))
    {4: 0.25, 7: 0.09000000000000001}
    """

    kind: ClassVar[str] = "paced"

    def of(self, given: RewardedSamples) -> dict[int, float]:
        rates = {group: prompt.solve_rate for group, prompt in given.prompts.items()}
        return {group: rate * (1 - rate) for group, rate in rates.items()}
