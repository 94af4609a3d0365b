"""GiGPO: an episode is compared with episodes, and its turns with turns of their states
(arXiv 2505.10978)."""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.advantages.normalization import mean_of, normalized
from asyncrl.algorithms.advantages.same_state import MemberTurn, PlayedGroup, TurnAdvantage


class Gigpo(TurnAdvantage):
    """`(R - mean of the others' R) + (G_t - b)`: the reward of the episode and the return of the
    turn, each less a mean over other episodes. b is that of turns of the same state, or, where no
    other episode was in it, of the others at the same turn.

    Its expectation is twice the gradient, at each turn. The authors differ (`gigpo_published`).

    >>> group = PlayedGroup([1.0, 0.0], [[1.0, 1.0], [0.0, 0.0]], [["a", "b"], ["a", "c"]])
    >>> Gigpo().of_turn(group, MemberTurn(0, 0)), Gigpo().of_turn(group, MemberTurn(1, 1))
    (2.0, -2.0)
    """

    kind: ClassVar[str] = "gigpo"

    def of_turn(self, group: PlayedGroup, place: MemberTurn) -> float:
        if len(group.rewards) < 2:
            return 0.0
        others = [reward for member, reward in enumerate(group.rewards) if member != place.member]
        baseline = mean_of(group.of_others(place, 1) or group.at_turn(place))
        own = group.to_go[place.member][place.turn]
        return group.rewards[place.member] - mean_of(others) + own - baseline


class GigpoPublished(TurnAdvantage):
    """GiGPO with the authors' sets and division: `(R - mean) / std` over the episodes, plus
    `(G_t - mean) / std` over all turns of the same state, 0 where there is no other.

    It is biased (cosine 0.990 to the gradient on the toy of `hgpo_published`): the turn itself, and
    other turns of its episode, are in mean and deviation, and turns of states that no other turn is
    in count half.

    >>> group = PlayedGroup([1.0, 0.0], [[1.0, 1.0], [0.0, 0.0]], [["a", "b"], ["a", "c"]])
    >>> [round(GigpoPublished().of_turn(group, MemberTurn(0, turn)), 3) for turn in (0, 1)]
    [1.414, 0.707]
    """

    kind: ClassVar[str] = "gigpo_published"

    def of_turn(self, group: PlayedGroup, place: MemberTurn) -> float:
        value = normalized(group.rewards)[place.member]
        alike = list(group.alike(place, 1))
        if len(alike) > 1:
            returns = [group.to_go[other.member][other.turn] for other in alike]
            value += normalized(returns)[alike.index(place)]
        return value
