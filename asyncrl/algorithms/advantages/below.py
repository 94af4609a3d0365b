"""Credit by what lies below: the reward that an episode earns at and below each of its turns
(`train.credit = below`), for agents that fork. Invariant: the baseline of a turn depends on nothing
that its own episode did, so the gradient is the true one whatever the tree's shape, as long as what
happens in a branch does not depend on another branch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple

from asyncrl.algorithms.advantages.advantage import LARGEST
from asyncrl.algorithms.advantages.credit import Column, PlayedMember, compared
from asyncrl.algorithms.advantages.normalization import all_equal
from asyncrl.algorithms.advantages.rewards_to_go import RewardsToGo, differ_to_go
from asyncrl.algorithms.selection.prompt_history import Signal

Place = tuple[int, int]


class Below(RewardsToGo):
    """The rewards at and below a turn, and the part of the reward that is of no turn. It is
    compared with the other members: their reward below turns of this depth for each leaf there,
    times the leaves that they have below this place of the tree, 0 where they have no such place. A
    place is the order of a turn among those directly below one turn. So an episode without branches
    has its rewards to go, and one with leaves has, at each, the mean of the others' leaves as its
    baseline.

    Both members ask twice from one context; what the second leaf earns is no credit of the first:

    >>> tree = [[], [0], [0]]
    >>> one, other = PlayedMember(2.0, [0, 2, 0], tree), PlayedMember(1.0, [0, 1, 0], tree)
    >>> Below().columns([one, other])[0]
    [(2.0, 1.0), (2.0, 0.5), (0.0, 0.5)]
    """

    kind: ClassVar[str] = "below"
    signal: ClassVar[Signal] = "below"
    of_branches: ClassVar[bool] = True

    def columns(self, members: Sequence[PlayedMember]) -> list[list[Column]]:
        places = dict[Place, int]()
        trees = [_tree(member, places) for member in members]
        earned, leaves = defaultdict[int, Fraction](Fraction), Counter[int]()
        owned, under = defaultdict[int, Fraction](Fraction), Counter[int]()
        for tree in trees:
            for turn in tree.turns:
                earned[turn.depth] += turn.earned
                leaves[turn.depth] += turn.leaves
                owned[turn.place] += tree.own
                under[turn.place] += turn.leaves
        columns, others = list[list[Column]](), max(1, len(members) - 1)
        for number, tree in enumerate(trees):
            here, there = defaultdict[int, Fraction](Fraction), Counter[int]()
            for turn in tree.turns:
                here[turn.depth] += turn.earned
                there[turn.depth] += turn.leaves
            columns.append([])
            for turn in tree.turns:
                of_leaf = earned[turn.depth] - here[turn.depth]
                of_leaf /= max(1, leaves[turn.depth] - there[turn.depth])
                baseline = owned[turn.place] - tree.own
                baseline += of_leaf * (under[turn.place] - turn.leaves)
                column = [_bounded(baseline / others)] * len(members)
                column[number] = _bounded(tree.own + turn.earned)
                columns[-1].append(tuple(column))
        return columns


class _TreeTurn(NamedTuple):
    """A turn in the tree of its episode, and the rewards and leaves at and below it."""

    place: int
    depth: int
    earned: Fraction
    leaves: int


class _Tree(NamedTuple):
    """The turns of an episode, and the part of its reward that is of no turn."""

    own: Fraction
    turns: list[_TreeTurn]


def _tree(member: PlayedMember, places: dict[Place, int]) -> _Tree:
    rewards = [Fraction(reward) for reward in member.turns]
    own = Fraction(member.reward) - sum(rewards)
    rewards = rewards or [Fraction(0)]
    above = member.above or [[turn - 1] * (turn > 0) for turn in range(len(rewards))]
    below = [1 << turn for turn in range(len(rewards))]
    for turn in reversed(range(len(rewards))):
        for parent in above[turn]:
            below[parent] |= below[turn]
    earning = [(1 << turn, reward) for turn, reward in enumerate(rewards) if reward]
    ends = sum(1 << turn for turn, under in enumerate(below) if under == 1 << turn)
    turns, order = list[_TreeTurn](), Counter[int]()
    for turn, over in enumerate(above):
        parent = turns[over[0]].place if over else -1
        place = places.setdefault((parent, order[parent]), len(places))
        order[parent] += 1
        depth = max((turns[number].depth + 1 for number in over), default=0)
        earned = sum((reward for bit, reward in earning if below[turn] & bit), Fraction(0))
        turns.append(_TreeTurn(place, depth, earned, (below[turn] & ends).bit_count()))
    return _Tree(own, turns)


def _bounded(value: Fraction) -> float:
    return float(max(-Fraction(LARGEST), min(Fraction(LARGEST), value)))


def differ_below(
    rewards: Sequence[float],
    turns: Sequence[Sequence[float]],
    above: Sequence[Sequence[Sequence[int]]],
) -> bool:
    """True if at any turn the rewards below it of a group's members differ from the others'.

    >>> differ_below([1.0, 1.0], [[1.0, 0.0], [1.0, 0.0]], [[[], []], [[], []]])
    True
    >>> differ_below([1.0, 1.0], [[0.0, 1.0], [0.0, 1.0]], [])
    False
    """
    if not any(above):
        return differ_to_go(rewards, turns)
    return not all(map(all_equal, compared(Below(), rewards, turns, above)))
