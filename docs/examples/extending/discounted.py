"""discounted.py: the rewards still to come, each turn's worth 0.9 of the one before."""

from collections.abc import Sequence

from asyncrl.algorithms.advantages.credit import Credit


class Discounted(Credit):
    """`sum of 0.9^(k - t) r_k` over the turns k from t on; what is of no turn is the last one's."""

    def returns(self, reward: float, turns: Sequence[float]) -> list[float]:
        own = [*turns[:-1], reward - sum(turns[:-1])]
        found, after = list[float](), 0.0
        for earned in reversed(own):
            after = earned + 0.9 * after
            found.insert(0, after)
        return found
