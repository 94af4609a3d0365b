"""Choice of the members of a group that are trained: each rule by an independent count, and the
gradient that it leaves, summed over every group that there can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations, product
from statistics import pvariance

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from some_values import some

from asyncrl.algorithms.advantages import Rloo
from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.algorithms.selection.keep import KeepRule, number_kept, positions
from asyncrl.algorithms.selection.keep_by_reward import Bottom, Top, TopBottom
from asyncrl.algorithms.selection.keep_roc import Roc, penalty
from asyncrl.config.selection_names import KEEPS

REWARDS = st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0)), min_size=1, max_size=8)
MEMBERS = st.lists(
    st.builds(
        JudgedMember,
        reward=st.sampled_from((0.0, 1.0)),
        right=st.booleans(),
        turns=st.integers(1, 5),
        failed=st.integers(0, 4),
        cut=st.booleans(),
        keys=st.lists(st.sampled_from(("", "answer", "look")), max_size=3),
    ),
    min_size=1,
    max_size=9,
)


@pytest.mark.parametrize("kind", some(["top_bottom", "all", "top", "bottom", "roc"]))
@given(members=MEMBERS, wanted=st.integers(0, 10), seed=st.integers(0, 9))
def test_a_rule_keeps_as_many_as_it_is_asked_for_and_the_same_again(
    kind: str, members: list[JudgedMember], wanted: int, seed: int
) -> None:
    rule, count = KEEPS.find(kind)(), number_kept(len(members), wanted)
    chosen = positions(rule.choose(members, count, random.Random(seed)), len(members))
    assert len(chosen) == (len(members) if kind == "all" else count)
    assert positions(rule.choose(members, count, random.Random(seed)), len(members)) == chosen


@given(rewards=REWARDS, data=st.data())
def test_by_reward_the_best_the_worst_or_those_that_vary_most_are_kept(
    rewards: list[float], data: st.DataObject
) -> None:
    members, draw = [JudgedMember(reward) for reward in rewards], random.Random(0)
    count = data.draw(st.integers(1, len(rewards)))

    def kept(rule: KeepRule) -> list[float]:
        return sorted(rewards[at] for at in rule.choose(members, count, draw))

    assert kept(Top()) == sorted(rewards)[len(rewards) - count :]
    assert kept(Bottom()) == sorted(rewards)[:count]
    most = max(pvariance(some) for some in combinations(rewards, count))
    assert pvariance(kept(TopBottom())) == pytest.approx(most)


@given(members=MEMBERS, data=st.data())
def test_roc_keeps_the_cleanest_right_answers_in_proportion(
    members: list[JudgedMember], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(members)))
    kept = set(Roc().choose(members, count, random.Random(data.draw(st.integers(0, 9)))))
    right = {at for at, member in enumerate(members) if member.right}
    share, both = count * len(right) / len(members), 0 < len(right) < len(members)
    if both and count > 1:
        share = min(max(share, 1), count - 1)
    assert abs(len(kept & right) - share) <= 0.5 + 1e-9
    worst = max((penalty(members[at]) for at in kept & right), default=0.0)
    assert all(penalty(members[at]) >= worst for at in right - kept)


@pytest.mark.parametrize(
    ("member", "due"),
    [
        (JudgedMember(1.0), 0.5),
        (JudgedMember(1.0, cut=True), 1.5),
        (JudgedMember(1.0, turns=4), 0.0),
        (JudgedMember(1.0, turns=5, failed=2), 0.5),
        (JudgedMember(1.0, turns=2, failed=2), 1.0),
        (JudgedMember(1.0, turns=4, keys=["", "answer", "answer", "answer"]), 0.5),
        (JudgedMember(1.0, turns=4, keys=["", "", "", "answer"], cut=True), 0.0),
        (JudgedMember(1.0, turns=2, failed=2, cut=True, keys=["look", ""]), 2.0),
    ],
)
def test_the_penalty_is_of_failed_calls_and_of_answers(member: JudgedMember, due: float) -> None:
    assert penalty(member) == due


@given(MEMBERS)
def test_roc_keeps_any_of_the_others(members: list[JudgedMember]) -> None:
    """Whatever they did: over many draws each comes."""
    wrong = [member._replace(right=False) for member in members]
    kept = {
        at for seed in range(200) for at in Roc().choose(wrong, number_kept(len(wrong)), _of(seed))
    }
    assert kept == set(range(len(wrong)))


def _of(seed: int) -> random.Random:
    return random.Random(f"0/keep/{seed}")


@pytest.mark.parametrize("chosen", [[], [3], [-1], [0, 0], [0.0], ["0"], [None], [True, False]])
def test_a_choice_of_none_or_of_no_member_is_refused(chosen: list[int]) -> None:
    with pytest.raises(ValueError, match=r"of 3 members; return one position or more, from 0 to 2"):
        positions(chosen, 3)


def test_a_choice_may_be_of_any_type_of_numbers_in_any_order() -> None:
    assert positions(np.array([2, 0]), 3) == [0, 2]  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ the gradient

FIRST = np.exp([0.4, -0.3]) / np.exp([0.4, -0.3]).sum()
SECOND = np.array([[0.7, 0.3], [0.25, 0.75]])
"""A policy of two decisions, the second by the first."""
RIGHT = {(0, 1), (1, 0), (1, 1)}
"""Paths that are right; with one of these the tool failed, which the reward does not say."""
FAILED = {(1, 1)}
GROUP = 4


def score(path: tuple[int, int]) -> NDArray[np.float64]:
    """The derivative of the log-probability of a path."""
    (a, b), found = path, np.zeros(6)
    found[:2] -= FIRST
    found[a] += 1
    found[2 + 2 * a : 4 + 2 * a] -= SECOND[a]
    found[2 + 2 * a + b] += 1
    return found


PATHS = [*product(range(2), repeat=2)]


def expected(
    rule: KeepRule, reward: Callable[[tuple[int, int]], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The expected gradient by leave-one-out advantages of what a rule keeps, over every group, and
    the true one."""
    chance = {(a, b): FIRST[a] * SECOND[a, b] for a, b in PATHS}
    true = sum((chance[p] * reward(p) * score(p) for p in PATHS), np.zeros(6))
    total = np.zeros(6)
    for group in product(PATHS, repeat=GROUP):
        members = [
            JudgedMember(reward(p), right=reward(p) >= 1, turns=3, failed=int(p in FAILED))
            for p in group
        ]
        kept = rule.choose(members, GROUP // 2, random.Random(0))
        rewards = [members[at].reward for at in kept]
        advantages = Rloo().of_group(rewards)
        one = sum((a * score(group[at]) for a, at in zip(advantages, kept, strict=True)), total * 0)
        total = total + np.prod([chance[p] for p in group]) * one / len(rewards)
    return total, true


def cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


class Unclean(Roc):
    """RoC without its penalty: any right answers."""

    def choose(self, members: Sequence[JudgedMember], count: int, draw: random.Random) -> list[int]:
        return super().choose([member._replace(failed=0) for member in members], count, draw)


@pytest.mark.parametrize("rule", [TopBottom(), Top(), Bottom(), Unclean()])
def test_of_rewards_0_and_1_a_choice_by_reward_keeps_the_gradients_direction(
    rule: KeepRule,
) -> None:
    found, true = expected(rule, lambda path: float(path in RIGHT))
    assert cosine(found, true) == pytest.approx(1.0, abs=1e-12)


def test_rocs_penalty_and_graded_rewards_change_it() -> None:
    """RoC prefers clean answers beyond their reward; docs/rewards.md has the numbers."""
    found, true = expected(Roc(), lambda path: float(path in RIGHT))
    assert cosine(found, true) == pytest.approx(0.965, abs=5e-4)
    graded = {(0, 0): 0.0, (0, 1): 0.5, (1, 0): 1.0, (1, 1): 0.75}
    found, true = expected(TopBottom(), lambda path: graded[path])
    assert cosine(found, true) == pytest.approx(0.994, abs=5e-4)
