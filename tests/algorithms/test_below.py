"""Credit by what lies below a turn: the gradient is the true one, summed over every group that
there can be, whatever the tree's shape; it is not where a branch depends on another one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncrl.algorithms.advantages import LARGEST, DrGrpo, RewardedSamples, Rloo
from asyncrl.algorithms.advantages.below import Below, differ_below
from asyncrl.algorithms.advantages.credit import ByTurn, Credit, PlayedMember, turn_advantages
from asyncrl.algorithms.advantages.rewards_to_go import RewardsToGo, differ_to_go
from asyncrl.config.loss_names import CREDITS
from asyncrl.experience.turns_above import TurnsAbove
from asyncrl.messages import Sample, Span

Gradient = NDArray[np.float64]

PROMPT, ASKED = 90, 91


class Call(NamedTuple):
    """A call of a toy's agent: its context, the one token that it sampled, and its reward. Its
    score is by the parameters of this context."""

    context: tuple[int, ...]
    sampled: int
    reward: float = 0.0


Episode = tuple[float, list[Call]]
"""An episode of a toy: its probability, and its calls."""
Chances = dict[tuple[int, ...], Sequence[float]]
"""The probability of each token, by the context."""


def above(calls: Sequence[Call]) -> list[list[int]]:
    """The calls above each call, by its tokens alone, as for a played episode."""
    turns, found = TurnsAbove(), list[list[int]]()
    for number, call in enumerate(calls):
        context = struct.pack(f"<{len(call.context)}i", *call.context)
        over = turns.add(context, struct.pack("<i", call.sampled))
        found.append([number - 1] * (number > 0) if over is None else list(over))
    return found


class Toy:
    """Every episode that an agent can play, and the policy that plays it."""

    def __init__(self, episodes: list[Episode], chances: Chances) -> None:
        self.episodes, self.chances = episodes, chances
        assert sum(chance for chance, _ in episodes) == pytest.approx(1)
        self._at = {context: n for n, context in enumerate(chances)}

    def score(self, call: Call) -> Gradient:
        score = np.zeros((len(self.chances), 3))
        chances = self.chances[call.context]
        score[self._at[call.context], : len(chances)] -= chances
        score[self._at[call.context], call.sampled] += 1
        return score.ravel()

    def true(self) -> Gradient:
        """The derivative of the expected reward."""
        return sum(
            chance * sum(call.reward for call in calls) * sum(map(self.score, calls))
            for chance, calls in self.episodes
        )

    def estimates(
        self, advantages: Callable[[list[list[Call]]], list[list[float]]], size: int
    ) -> tuple[Gradient, float]:
        """The mean, and the trace of the variance, of what an estimator makes of a group."""
        scores = [[self.score(call) for call in calls] for _, calls in self.episodes]
        mean, squares = np.zeros(3 * len(self.chances)), 0.0
        for group in product(range(len(self.episodes)), repeat=size):
            chance = float(np.prod([self.episodes[n][0] for n in group]))
            table = advantages([self.episodes[n][1] for n in group])
            found = np.zeros_like(mean)
            for n, row in zip(group, table, strict=True):
                for score, value in zip(scores[n], row, strict=True):
                    found += value * score / size
            mean += chance * found
            squares += chance * found @ found
        return mean, squares - float(mean @ mean)


def by(credit: Credit) -> Callable[[list[list[Call]]], list[list[float]]]:
    known = dict[tuple[Call, ...], list[list[int]]]()

    def of(group: list[list[Call]]) -> list[list[float]]:
        rewards = [sum(call.reward for call in calls) for calls in group]
        turns = [[call.reward for call in calls] for calls in group]
        trees = [known.setdefault(tuple(calls), above(calls)) for calls in group]
        return turn_advantages(Rloo(), credit, rewards, turns, trees)

    return of


def own_leaves(group: list[list[Call]]) -> list[list[float]]:
    """Not ours: the mean of the others' leaves as often as a turn has leaves itself."""
    table = list[list[float]]()
    for calls in group:
        others = [call for other in group if other is not calls for call in other]
        leaves = [call for call in others if call.reward or len(call.context) > 1]
        mean = sum(call.reward for call in leaves) / max(1, len(leaves))
        row = list[float]()
        for number in range(len(calls)):
            tree = above(calls)
            below = {number}
            for later in range(number, len(calls)):
                below |= {later} if below & set(tree[later]) else set()
            ends = [n for n in below if not any(n in over for over in tree)]
            row.append(sum(calls[n].reward for n in below) - len(ends) * mean)
        table.append(row)
    return table


def cosine(a: Gradient, b: Gradient) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def scale(found: Gradient, true: Gradient) -> float:
    return float(found @ true / (true @ true))


# ---------------------------------------------------------------------------------------- the toys

ODDS = np.exp([0.3, -0.5])
FIRST, NEXT = tuple(ODDS / ODDS.sum()), ((0.6, 0.4), (0.2, 0.8))
WORTH = ((0.5, 0.125), (0.0, 0.25))
"""The toy of test_branches_gradient.py."""


def forking(ends: int = 2) -> Toy:
    """One call, and others that go on from its reply."""
    chances: Chances = {(PROMPT,): FIRST} | {(PROMPT, a, ASKED): NEXT[a] for a in (0, 1)}
    episodes = list[Episode]()
    for a, *after in product((0, 1), repeat=1 + ends):
        calls = [Call((PROMPT, a, ASKED), b, WORTH[a][b]) for b in after]
        chance = FIRST[a] * float(np.prod([NEXT[a][b] for b in after]))
        episodes.append((chance, [Call((PROMPT,), a), *calls]))
    return Toy(episodes, chances)


def forking_at_once() -> Toy:
    """Two calls from the prompt, and each reply is gone on from. Equal replies are frequent."""
    chances: Chances = {(PROMPT,): FIRST} | {(PROMPT, a, ASKED): NEXT[a] for a in (0, 1)}
    episodes = [
        (
            FIRST[a] * FIRST[b] * NEXT[a][c] * NEXT[b][d],
            [
                Call((PROMPT,), a),
                Call((PROMPT,), b),
                Call((PROMPT, a, ASKED), c, WORTH[a][c]),
                Call((PROMPT, b, ASKED), d, WORTH[b][d]),
            ],
        )
        for a, b, c, d in product((0, 1), repeat=4)
    ]
    return Toy(episodes, chances)


def forking_at_will() -> Toy:
    """The first reply says whether there are no, one or two more calls, so that the number of ends
    is an action of the policy."""
    first, then = (0.3, 0.45, 0.25), (0.35, 0.65)
    chances: Chances = {(PROMPT,): first} | {(PROMPT, a, ASKED): then for a in (1, 2)}
    episodes = list[Episode]()
    for a in range(3):
        for leaves in product((0, 1), repeat=a):
            calls = [Call((PROMPT,), a, 0.8 if not a else -0.1)]
            calls += [Call((PROMPT, a, ASKED), leaf, (0.2, 1.0)[leaf]) for leaf in leaves]
            chance = first[a] * float(np.prod([then[leaf] for leaf in leaves]))
            episodes.append((chance, calls))
    return Toy(episodes, chances)


def looking() -> Toy:
    """Two calls from the prompt, and only the reply with the larger token is gone on from."""
    chances: Chances = {(PROMPT,): FIRST} | {(PROMPT, a, ASKED): NEXT[a] for a in (0, 1)}
    episodes = list[Episode]()
    for a, b, c in product((0, 1), repeat=3):
        best = max(a, b)
        calls = [Call((PROMPT,), a), Call((PROMPT,), b)]
        calls.append(Call((PROMPT, best, ASKED), c, 2 * WORTH[best][c]))
        episodes.append((FIRST[a] * FIRST[b] * NEXT[best][c], calls))
    return Toy(episodes, chances)


@pytest.mark.parametrize(
    "toy", [forking, forking_at_will, pytest.param(forking_at_once, marks=pytest.mark.explore)]
)
def test_the_gradient_is_the_true_one(toy: Callable[[], Toy]) -> None:
    subject = toy()
    true = subject.true()
    assert np.linalg.norm(true) > 0.05, "or this shows nothing"
    found, _ = subject.estimates(by(Below()), 3)
    print(f"below: cosine {cosine(found, true):.4f}, scale {scale(found, true):.4f}")
    assert found == pytest.approx(true, abs=1e-12)


@pytest.mark.parametrize(
    ("ends", "ratio"), [(2, 0.69), pytest.param(3, 0.57, marks=pytest.mark.explore)]
)
def test_its_variance_is_a_part_of_that_of_rewards_to_go(ends: int, ratio: float) -> None:
    """The docs state these numbers."""
    subject = forking(ends)
    _, below = subject.estimates(by(Below()), 3)
    found, to_go = subject.estimates(by(RewardsToGo()), 3)
    assert found == pytest.approx(subject.true(), abs=1e-12)
    print(f"variance: below {below:.4f}, to_go {to_go:.4f}, ratio {below / to_go:.3f}")
    assert below / to_go <= 0.75
    assert round(below / to_go, 2) == ratio


def test_a_baseline_by_a_turns_own_leaves_is_biased_where_they_are_chosen() -> None:
    subject = forking_at_will()
    true = subject.true()
    found, _ = subject.estimates(own_leaves, 3)
    print(f"own leaves: cosine {cosine(found, true):.4f}, scale {scale(found, true):.3f}")
    assert round(cosine(found, true), 3) == 0.870 and round(scale(found, true), 2) == 0.76


def test_where_one_branch_depends_on_another_it_is_biased_and_rewards_to_go_are_not() -> None:
    subject = looking()
    true = subject.true()
    to_go, _ = subject.estimates(by(RewardsToGo()), 3)
    below, _ = subject.estimates(by(Below()), 3)
    print(f"looking: cosine {cosine(below, true):.4f}, scale {scale(below, true):.3f}")
    assert to_go == pytest.approx(true, abs=1e-12)
    assert round(cosine(below, true), 2) == 0.4 and round(scale(below, true), 2) == 0.32


# ----------------------------------------------------------------------------------- what it is


eighths = st.integers(-16, 16).map(lambda number: number / 8)


@st.composite
def trees(draw: st.DrawFn) -> PlayedMember:
    turns = draw(st.lists(eighths, min_size=1, max_size=6))
    over = [
        sorted(draw(st.sets(st.integers(0, number - 1), max_size=2))) if number else []
        for number in range(len(turns))
    ]
    return PlayedMember(sum(turns) + draw(eighths), turns, over)


groups = st.lists(trees(), min_size=2, max_size=4)


@given(groups)
def test_what_it_is_compared_with_is_of_the_others_alone(group: list[PlayedMember]) -> None:
    """Whatever the member earned, and whatever followed a turn."""
    columns = Below().columns(group)
    first = group[0]
    for turn, column in enumerate(columns[0]):
        below = {turn}
        for later, over in enumerate(first.above):
            below |= {later} if below & set(over) else set()
        own = first.reward - sum(first.turns)
        assert column[0] == own + sum(first.turns[later] for later in below)
        kept = PlayedMember(5.0, [0.25] * (turn + 1), first.above[: turn + 1])
        changed = Below().columns([kept, *group[1:]])
        assert changed[0][turn][1:] == column[1:]


def by_paths(group: list[PlayedMember]) -> list[list[tuple[float, ...]]]:
    """Columns where a place is the path to it: of each turn from a root on, its order among those
    below the same one."""
    forests = list[list[tuple[tuple[int, ...], int, float, int]]]()
    for member in group:
        paths, depths = list[tuple[int, ...]](), list[int]()
        for over in member.above:
            start = paths[over[0]] if over else ()
            order = sum(path[:-1] == start and len(path) == len(start) + 1 for path in paths)
            paths.append((*start, order))
            depths.append(max((depths[turn] + 1 for turn in over), default=0))
        below = [{turn} for turn in range(len(paths))]
        for turn, over in reversed(list(enumerate(member.above))):
            for parent in over:
                below[parent] |= below[turn]
        parents = {turn for over in member.above for turn in over}
        forests.append(
            [
                (path, depth, sum(member.turns[t] for t in under), len(under - parents))
                for path, depth, under in zip(paths, depths, below, strict=True)
            ]
        )
    own = [member.reward - sum(member.turns) for member in group]
    columns = list[list[tuple[float, ...]]]()
    for number, forest in enumerate(forests):
        columns.append([])
        others = [(n, turn) for n, other in enumerate(forests) if n != number for turn in other]
        for path, depth, earned, _ in forest:
            level = [turn for _, turn in others if turn[1] == depth]
            of_leaf = sum(turn[2] for turn in level) / max(1, sum(turn[3] for turn in level))
            there = [(n, turn) for n, turn in others if turn[0] == path]
            baseline = sum(own[n] + of_leaf * turn[3] for n, turn in there) / (len(group) - 1)
            column = [baseline] * len(group)
            column[number] = own[number] + earned
            columns[-1].append(tuple(column))
    return columns


def under(*over: list[int]) -> PlayedMember:
    """A member with these turns above each."""
    return PlayedMember(2.0 ** len(over), [2.0**turn for turn in range(len(over))], over)


@example([under([], [0], []), under([], [], [1])])
@example([under([], [], [0]), under([], [0], [1], [])])
@given(groups)
def test_a_place_is_a_path_from_a_root(group: list[PlayedMember]) -> None:
    """Whichever turns come first, and however many an episode begins with."""
    for row, due in zip(Below().columns(group), by_paths(group), strict=True):
        for column, expected in zip(row, due, strict=True):
            assert column == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(eighths, st.lists(eighths, max_size=5)), min_size=1, max_size=5))
def test_without_branches_it_is_the_reward_to_go(members: list[tuple[float, list[float]]]) -> None:
    rewards = [own + sum(turns) for own, turns in members]
    turns = [turns for _, turns in members]
    due = turn_advantages(Rloo(), RewardsToGo(), rewards, turns)
    for row, expected in zip(turn_advantages(Rloo(), Below(), rewards, turns), due, strict=True):
        assert row == pytest.approx(expected, abs=1e-9)
    shrunk = turn_advantages(DrGrpo(), Below(), rewards, turns)
    for row, expected in zip(shrunk, due, strict=True):
        part = (len(members) - 1) / len(members)
        assert row == pytest.approx([part * value for value in expected], abs=1e-9)
    assert differ_below(rewards, turns, []) == differ_to_go(rewards, turns)


def test_groups_have_a_signal_where_only_the_ends_of_one_episode_differ() -> None:
    rewards, turns, tree = [1.0, 1.0], [[0.0, 1.0, 0.0]] * 2, [[[], [0], [0]]] * 2
    assert differ_below(rewards, turns, tree) and not differ_to_go(rewards, turns)
    thirds = [[0.0, 0.1, 0.1], [0.0, 0.1, 0.1]]
    assert not differ_below([0.2, 0.2], thirds, tree), "equal is exactly equal"
    assert CREDITS.find("below") is Below


def test_huge_rewards_are_bounded() -> None:
    huge = PlayedMember(1.0, [1e308, 1e308, -1e308], [[], [], []])
    (row, _) = Below().columns([huge, PlayedMember(0.0, [-1e308])])
    assert {abs(value) <= LARGEST for column in row for value in column} == {True}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ([[[], [1]], []], "lie below a later one"),
        ([[[], [-1]], []], "lie below a later one"),
        ([[[]], []], "other turns than its members"),
        ([[[], []]], "other turns than its members"),
    ],
)
def test_a_tree_that_is_none_is_refused(tree: list[list[list[int]]], said: str) -> None:
    sample = Sample(8, 4, 1, 2, 1.0, [Span(0, 1, 3)], member=0, turns=[(0, 1), (1, 1)])
    given = RewardedSamples(
        [sample], {4: [1.0, 0.0]}, {}, turns={4: [[0.0, 1.0], [0.0]]}, above={4: tree}
    )
    with pytest.raises(ValueError, match=said):
        ByTurn(Rloo(), Below()).of(given)
