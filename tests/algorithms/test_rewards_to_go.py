"""Rewards to go: what they are, and that the gradient by them is the true one where the policy
chooses when to stop. The toy is summed over every group that there can be, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.algorithms.advantage_tensors import token_values
from asyncrl.algorithms.advantages import (
    LARGEST,
    DrGrpo,
    GroupAdvantage,
    RewardedSamples,
    Rloo,
)
from asyncrl.algorithms.advantages.credit import ByTurn, turn_advantages
from asyncrl.algorithms.advantages.rewards_to_go import RewardsToGo, differ_to_go, rewards_to_go
from asyncrl.config.loss_names import ADVANTAGES
from asyncrl.messages import Sample, Span

Table = list[list[float]]

TO_GO = RewardsToGo()

# Few values make ties, and sums of eighths are exact.
eighths = st.integers(-16, 16).map(lambda number: number / 8)
members = st.lists(st.tuples(eighths, st.lists(eighths, max_size=5)), min_size=1, max_size=5)


def of_tokens(given: RewardedSamples) -> Tensor:
    """The factor of each token, as the trainer multiplies with it."""
    return token_values(ByTurn(Rloo(), TO_GO), given).value


def to_come(own: float, turns: Sequence[float], turn: int) -> float:
    """Reward from a turn on: the rewards of those turns, and what is of no turn."""
    total = own
    for later in range(turn, len(turns)):
        total += turns[later]
    return total


def of_the_others(own: Sequence[float], turns: Sequence[Sequence[float]]) -> Table:
    """Reward to go minus the mean of the others' at that turn, 0 for those that had ended."""
    table = []
    for member in range(len(own)):
        row = []
        for turn in range(max(1, len(turns[member]))):
            others, count = 0.0, 0
            for other in range(len(own)):
                if other != member:
                    count += 1
                    if turn < max(1, len(turns[other])):
                        others += to_come(own[other], turns[other], turn)
            row.append(to_come(own[member], turns[member], turn) - others / count if count else 0.0)
        table.append(row)
    return table


@given(members)
def test_a_turn_is_compared_with_what_the_others_had_to_come(
    group: list[tuple[float, list[float]]],
) -> None:
    own, turns = [reward for reward, _ in group], [of_turns for _, of_turns in group]
    rewards = [reward + sum(of_turns) for reward, of_turns in group]
    for reward, of_turns, less in zip(rewards, turns, own, strict=True):
        expected = [to_come(less, of_turns, turn) for turn in range(max(1, len(of_turns)))]
        assert rewards_to_go(reward, of_turns) == expected
    found = turn_advantages(Rloo(), TO_GO, rewards, turns)
    for row, expected in zip(found, of_the_others(own, turns), strict=True):
        assert row == pytest.approx(expected, abs=1e-12)
    signal = any(value for row in found for value in row)
    assert differ_to_go(rewards, turns) == signal


@given(st.lists(eighths, min_size=2, max_size=6))
def test_where_no_agent_played_it_is_the_advantage_of_the_rollout(rewards: list[float]) -> None:
    nothing: Table = [[] for _ in rewards]
    for advantage in (Rloo(), DrGrpo()):
        found = turn_advantages(advantage, TO_GO, rewards, nothing)
        assert found == [[value] for value in advantage.of_group(rewards)]
    assert differ_to_go(rewards, nothing) == (len(set(rewards)) > 1)


def test_groups_differ_where_only_the_turns_do() -> None:
    assert differ_to_go([1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]])
    assert differ_to_go([1.0, 1.0], [[0.5], [0.5, 0.5]]), "one has ended"
    assert not differ_to_go([1.0, 1.0], [[0.5, 0.5], [0.5, 0.5]])
    assert not differ_to_go([0.0, 0.0], [[0.0], [0.0, 0.0]]), "nothing was to come"


def test_rewards_that_are_too_large_are_bounded_and_not_infinite() -> None:
    huge = [1e308, 1e308, 1e308]
    assert rewards_to_go(1.0, huge) == [1.0, -LARGEST, -LARGEST]
    assert rewards_to_go(1.0, [-1e308, -1e308, 0.0]) == [1.0, LARGEST, LARGEST]
    found = of_tokens(
        RewardedSamples(
            [Sample(0, 0, 1, 3, 1.0, [Span(0, 1, 4)], member=0, turns=[(0, 1), (1, 1), (2, 1)])],
            {0: [1.0, 0.0]},
            {},
            turns={0: [huge, [0.0, -1e308, 0.0]]},
        ),
    )
    assert found.isfinite().all()


# ------------------------------------------------------------------------------------------ the toy


class Played(NamedTuple):
    """An episode: its probability, the score d log π of each of its turns, the rewards of its
    turns, and its own."""

    probability: float
    scores: list[float]
    turns: list[float]
    own: float


THETA, TURNS = 0.3, 3


def episodes() -> list[Played]:
    """At each turn the policy stops with probability σ(θ). To go on costs more at each turn, a stop
    pays, and what the last turn leaves is the episode's own."""
    stop, found = 1 / (1 + math.exp(-THETA)), []
    for ended in range(TURNS + 1):
        stopped = ended < TURNS
        turns = [-0.2 * (turn + 1) for turn in range(ended)] + [0.7] * stopped
        found.append(
            Played(
                (1 - stop) ** ended * (stop if stopped else 1.0),
                [-stop] * ended + [1 - stop] * stopped,
                turns,
                [1.0, 0.2, -0.4, -1.5][ended],
            )
        )
    assert sum(played.probability for played in found) == pytest.approx(1)
    return found


def true_gradient(world: Sequence[Played]) -> float:
    """The derivative of the expected reward."""
    return sum(
        played.probability * sum(played.scores) * (played.own + sum(played.turns))
        for played in world
    )


def expected_gradient(
    advantages: Callable[[list[Played]], Table], size: int, world: Sequence[Played]
) -> float:
    """The mean over all groups of `size` of what an estimator makes of each."""
    total = 0.0
    for group in product(world, repeat=size):
        probability = math.prod(played.probability for played in group)
        values = advantages(list(group))
        for played, row in zip(group, values, strict=True):
            for score, value in zip(played.scores, row, strict=True):
                total += probability * score * value / size
    return total


def by(advantage: GroupAdvantage) -> Callable[[list[Played]], Table]:
    def of(group: list[Played]) -> Table:
        rewards = [played.own + sum(played.turns) for played in group]
        return turn_advantages(advantage, TO_GO, rewards, [played.turns for played in group])

    return of


def by_loops(group: list[Played]) -> Table:
    return of_the_others([played.own for played in group], [played.turns for played in group])


def among_those_present(group: list[Played]) -> Table:
    """Not ours: each turn normalized over the episodes that have it."""
    table = []
    for played in group:
        row = []
        for turn in range(len(played.turns)):
            here = [to_come(p.own, p.turns, turn) for p in group if turn < len(p.turns)]
            mean = sum(here) / len(here)
            std = math.sqrt(sum((value - mean) ** 2 for value in here) / len(here))
            row.append((to_come(played.own, played.turns, turn) - mean) / (std + 1e-9))
        table.append(row)
    return table


@pytest.mark.parametrize("size", [2, 3])
def test_the_gradient_by_rewards_to_go_is_the_true_one(size: int) -> None:
    true = true_gradient(episodes())
    assert abs(true) > 0.1, "or this shows nothing"
    assert expected_gradient(by_loops, size, episodes()) == pytest.approx(true, abs=1e-12)
    assert expected_gradient(by(Rloo()), size, episodes()) == pytest.approx(true, abs=1e-12)
    # its mean is with the member itself, so it is that much smaller, at each turn
    shrunk = true * (size - 1) / size
    assert expected_gradient(by(DrGrpo()), size, episodes()) == pytest.approx(shrunk, abs=1e-12)


def test_normalized_among_those_present_it_is_not() -> None:
    true = true_gradient(episodes())
    assert abs(expected_gradient(among_those_present, 3, episodes()) - true) > 0.2 * abs(true)
    assert not any(
        ADVANTAGES.find(kind).by_turn for kind in ADVANTAGES if kind not in ("rloo", "dr_grpo")
    )


# ------------------------------------------------------------------ each turn pays, and a stop ends


def paid_episodes() -> list[Played]:
    """Each of three turns pays 1. In the first two the policy chooses to stop with probability
    σ(θ); the third is the last."""
    stop, found = 1 / (1 + math.exp(-THETA)), []
    for ended in range(TURNS):
        stopped = ended < TURNS - 1
        found.append(
            Played(
                (1 - stop) ** ended * (stop if stopped else 1.0),
                [-stop] * ended + [1 - stop if stopped else 0.0],
                [1.0] * (ended + 1),
                0.0,
            )
        )
    return found


def summed(column: Callable[[list[float | None]], list[float]]) -> Callable[[list[Played]], Table]:
    """Not ours: the rewards of each turn are normalized by `column`, which is given None where an
    episode had ended, and a turn is credited with the sum of its own from there to its last."""

    def of(group: list[Played]) -> Table:
        most = max(len(played.turns) for played in group)
        columns = [
            column([p.turns[turn] if turn < len(p.turns) else None for p in group])
            for turn in range(most)
        ]
        return [
            [
                sum(columns[at][n] for at in range(turn, len(p.turns)))
                for turn in range(len(p.turns))
            ]
            for n, p in enumerate(group)
        ]

    return of


def less_the_others(rewards: list[float | None]) -> list[float]:
    """Less the mean of the others', 0 where they had ended."""
    given = [reward or 0.0 for reward in rewards]
    return [reward - (sum(given) - reward) / (len(given) - 1) for reward in given]


def standardized(rewards: list[float | None]) -> list[float]:
    """By mean and deviation of the group, 0 for those that had ended."""
    given = [reward or 0.0 for reward in rewards]
    mean = sum(given) / len(given)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in given) / len(given))
    return [(reward - mean) / (std + 1e-9) for reward in given]


def standardized_if_present(rewards: list[float | None]) -> list[float]:
    """By mean and deviation of those that are still there."""
    here = standardized([reward for reward in rewards if reward is not None])
    return [0.0 if reward is None else here.pop(0) for reward in rewards]


def by_tensor(group: list[Played]) -> Table:
    """Factors that the trainer multiplies with. A turn is one token, and an episode one sample."""
    samples = [
        Sample(
            member,
            0,
            1,
            len(played.turns),
            sum(played.turns),
            [Span(0, 1, 1 + len(played.turns))],
            member=member,
            turns=[(turn, 1) for turn in range(len(played.turns))],
        )
        for member, played in enumerate(group)
    ]
    rewards, turns = [sum(played.turns) for played in group], [played.turns for played in group]
    given = RewardedSamples(samples, {0: rewards}, {}, turns={0: turns})
    flat = of_tokens(given).double().tolist()
    return [[flat.pop(0) for _ in played.turns] for played in group]


@pytest.mark.parametrize(("size", "scaled"), [(2, -0.3108), (3, -0.4396)])
def test_where_each_turn_pays_only_the_reward_to_go_gives_the_true_gradient(
    size: int, scaled: float
) -> None:
    world = paid_episodes()
    true = true_gradient(world)
    nudged = [1 / (1 + math.exp(-THETA - nudge)) for nudge in (-1e-6, 1e-6)]
    low, high = (1 + (1 - stop) + (1 - stop) ** 2 for stop in nudged)
    assert true == pytest.approx((high - low) / 2e-6, abs=1e-8)
    assert round(true, 4) == -0.4525
    assert expected_gradient(by(Rloo()), size, world) == pytest.approx(true, abs=1e-12)
    found = expected_gradient(by_tensor, size, world)
    assert found == pytest.approx(true, abs=1e-12 if size == 2 else 1e-6), "a third is no float32"
    # not ours: what the others earned after one's last turn is in no sum, so that to stop costs
    # less than it does, or, among those who are still there, nothing
    assert round(expected_gradient(summed(less_the_others), size, world), 4) == -0.3108
    assert round(expected_gradient(summed(standardized), size, world), 4) == scaled
    assert expected_gradient(summed(standardized_if_present), size, world) == 0.0


# --------------------------------------------------------------------------------------- its tokens


def sample(member: int, turns: list[tuple[int, int]], strand: int = 0) -> Sample:
    tokens = sum(count for _, count in turns)
    spans = [Span(0, 2, 2 + tokens)]
    return Sample(
        member, 4, 2, tokens, [1.5, 0.5][member], spans, member=member, strand=strand, turns=turns
    )


REWARDS, OF_TURNS = {4: [1.5, 0.5]}, {4: [[0.5, 0.0, 1.0], [0.5]]}


def test_a_token_has_the_advantage_of_its_own_turn_in_whichever_strand() -> None:
    first, second, other = sample(0, [(0, 2), (2, 1)]), sample(0, [(1, 3)], 1), sample(1, [(0, 2)])
    given = RewardedSamples([first, second, other], REWARDS, {}, turns=OF_TURNS)
    expected = [*[1.0, 1.0, 1.0], *[1.0, 1.0, 1.0], *[-1.0, -1.0]]
    assert of_tokens(given).tolist() == expected
    last = {4: [[0.5, 0.75, 0.25], [0.5]]}
    given = RewardedSamples([first, second, other], REWARDS, {}, turns=last)
    expected = [*[1.0, 1.0, 0.25], *[1.0, 1.0, 1.0], *[-1.0, -1.0]]
    assert of_tokens(given).tolist() == expected
    assert of_tokens(RewardedSamples([], {}, {})).shape == (0,)


@pytest.mark.parametrize(
    ("turns", "of_turns", "said"),
    [
        ([(0, 2), (3, 1)], OF_TURNS, "or its 3 turns"),
        ([(-1, 3)], OF_TURNS, "or its 3 turns"),
        ([(0, 4), (1, -1)], OF_TURNS, "do not match its 3 sampled tokens"),
        ([(0, 3)], {4: [[0.5]]}, "2 rewards, but turns came of 1 members"),
        ([(0, 3)], {4: [[0.5, math.nan, 0.5], [0.5]]}, "a turn whose reward is not finite"),
    ],
)
def test_turns_that_are_not_the_samples_are_refused(
    turns: list[tuple[int, int]], of_turns: dict[int, Table], said: str
) -> None:
    given = RewardedSamples([sample(0, turns)], REWARDS, {}, turns=of_turns)
    with pytest.raises(ValueError, match=said):
        of_tokens(given)
