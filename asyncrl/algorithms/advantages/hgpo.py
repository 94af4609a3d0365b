"""HGPO: turns are compared with turns that share their last states (arXiv 2602.22817)."""

from __future__ import annotations

from typing import ClassVar

from asyncrl.algorithms.advantages.normalization import mean_of, normalized
from asyncrl.algorithms.advantages.same_state import MemberTurn, PlayedGroup, TurnAdvantage

HISTORY = 2
"""Earlier states that the finest groups share: K of the paper."""
ALPHA = 1.0
"""The group of k states has the weight (k + 1)^ALPHA."""


class Hgpo(TurnAdvantage):
    """`G_t - sum_k w_k b_k`: the return of a turn less a mean of baselines. b_k is the mean return
    of the turns of *other* episodes with the same last k states, k = 1 .. K + 1, and b_0 that of
    the other episodes at the same turn. w_k is proportional to (k + 1)^1 over the groups that there
    are.

    That is unbiased: no baseline, and no weight, depends on what the episode did from the turn on.
    The authors differ (`hgpo_published`). The state of a turn is its key; without keys this is
    `rloo` with `credit = to_go`.

    >>> group = PlayedGroup([1.0, 0.0], [[1.0, 1.0], [0.0, 0.0]], [["a", "b"], ["a", "c"]])
    >>> Hgpo().of_turn(group, MemberTurn(0, 0)), Hgpo().of_turn(group, MemberTurn(1, 1))
    (1.0, -1.0)
    """

    kind: ClassVar[str] = "hgpo"

    def of_turn(self, group: PlayedGroup, place: MemberTurn) -> float:
        if len(group.rewards) < 2:
            return 0.0
        baselines = [(1.0, mean_of(group.at_turn(place)))]
        for k in range(1, HISTORY + 2):
            if others := group.of_others(place, k):
                baselines.append(((k + 1) ** ALPHA, mean_of(others)))
        total = sum(weight for weight, _ in baselines)
        baseline = sum(weight * value for weight, value in baselines) / total
        return group.to_go[place.member][place.turn] - baseline


class HgpoPublished(TurnAdvantage):
    """HGPO as in the authors' code: `sum_k w_k (G - mean) / std` over all turns with the same last
    k states, k = 1 .. K + 1, and w_k proportional to (k + 1)^1 over those values that are not 0.

    It is biased (cosine 0.978 to the gradient on a toy whose episodes revisit a state): the turn
    itself, and other turns of its episode, are in mean and deviation, and the weights depend on the
    values. A turn whose states no other turn shares is not trained.

    >>> group = PlayedGroup([1.0, 0.0], [[1.0, 1.0], [0.0, 0.0]], [["a", "b"], ["a", "c"]])
    >>> round(HgpoPublished().of_turn(group, MemberTurn(0, 0)), 3)
    0.707
    >>> HgpoPublished().of_turn(group, MemberTurn(0, 1))
    0.0
    """

    kind: ClassVar[str] = "hgpo_published"

    def of_turn(self, group: PlayedGroup, place: MemberTurn) -> float:
        weighted, total = 0.0, 0.0
        for k in range(1, HISTORY + 2):
            alike = list(group.alike(place, k))
            if len(alike) < 2:
                continue
            values = normalized([group.to_go[other.member][other.turn] for other in alike])
            if value := values[alike.index(place)]:
                weighted += (k + 1) ** ALPHA * value
                total += (k + 1) ** ALPHA
        return weighted / total if total else 0.0
