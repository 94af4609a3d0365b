"""squared.py: PACED's weight p^a (1 - p)^b with a = 1 and b = 2."""

from asyncrl.algorithms.advantages import RewardedSamples
from asyncrl.algorithms.advantages.group_weight import GroupWeight


class Squared(GroupWeight):
    """`p (1 - p)^2` of the solve rate p at earlier visits: hard prompts count more."""

    def of(self, given: RewardedSamples) -> dict[int, float]:
        rates = {group: prompt.solve_rate for group, prompt in given.prompts.items()}
        return {group: rate * (1 - rate) ** 2 for group, rate in rates.items()}
