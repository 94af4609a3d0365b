"""HGPO and GiGPO: in a world whose episodes revisit a state, summed over every group, theirs with a
mean of other episodes are the true gradient; as published they are not. Values are compared with a
second formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import pytest

from asyncrl.algorithms.advantage_tensors import token_values
from asyncrl.algorithms.advantages import RewardedSamples
from asyncrl.algorithms.advantages.gigpo import Gigpo, GigpoPublished
from asyncrl.algorithms.advantages.hgpo import Hgpo, HgpoPublished
from asyncrl.algorithms.advantages.same_state import MemberTurn, PlayedGroup, TurnAdvantage
from asyncrl.messages import Sample, Span

STAY = 1 / (1 + math.exp(-0.4))
"""The policy stays with this chance in each state. The logits of the two states are its weights."""
TURNS = 3


class Played(NamedTuple):
    """An episode: its probability, the scores d log π, rewards and states of its turns."""

    probability: float
    scores: list[float]
    turns: list[float]
    keys: list[str]


def world() -> list[Played]:
    """Staying in "a" pays 0.3 and comes back to "a"; to go on to "b" pays 0.1, and there the
    episode ends with 0.5 if it stays. So an episode may be in "a" up to three times."""
    found = []
    for stays in range(TURNS + 1):
        scores, turns, keys = [1 - STAY] * stays, [0.3] * stays, ["a"] * stays
        if stays == TURNS:
            found.append(Played(STAY**TURNS, scores, turns, keys))
            continue
        scores, turns, keys = [*scores, -STAY], [*turns, 0.1], [*keys, "a"]
        for ends, chance in ((True, STAY), (False, 1 - STAY)):
            probability = STAY**stays * (1 - STAY) * chance
            score = 1 - STAY if ends else -STAY
            found.append(Played(probability, [*scores, score], [*turns, 0.5 * ends], [*keys, "b"]))
    assert sum(played.probability for played in found) == pytest.approx(1)
    return found


Gradient = tuple[float, float]
"""By the logits of "a" and "b"."""


def by_state(played: Played, factors: Sequence[float]) -> Gradient:
    """The sum of the scores in each state, each times its factor."""
    table = list(zip(played.keys, played.scores, factors, strict=True))
    a, b = (sum(s * f for key, s, f in table if key == state) for state in "ab")
    return a, b


def true_gradient() -> Gradient:
    rows = [by_state(p, [p.probability * sum(p.turns)] * len(p.turns)) for p in world()]
    return sum(a for a, _ in rows), sum(b for _, b in rows)


def cosine(one: Gradient, other: Gradient) -> float:
    product_ = one[0] * other[0] + one[1] * other[1]
    return product_ / math.hypot(*one) / math.hypot(*other)


def grouped(members: tuple[Played, ...]) -> PlayedGroup:
    to_go = [[sum(p.turns[turn:]) for turn in range(len(p.turns))] for p in members]
    return PlayedGroup([sum(p.turns) for p in members], to_go, [p.keys for p in members])


def expected(advantage: TurnAdvantage, size: int = 3) -> Gradient:
    a, b = 0.0, 0.0
    for members in product(world(), repeat=size):
        group, chance = grouped(members), math.prod(p.probability for p in members) / size
        for number, played in enumerate(members):
            places = [MemberTurn(number, turn) for turn in range(len(played.turns))]
            row = by_state(played, [advantage.of_turn(group, place) for place in places])
            a, b = a + chance * row[0], b + chance * row[1]
    return a, b


def test_with_a_mean_of_other_episodes_the_gradient_is_the_true_one() -> None:
    true = true_gradient()
    assert min(map(abs, true)) > 0.02, "or this shows nothing"
    assert expected(Hgpo()) == pytest.approx(true, abs=1e-12)
    assert expected(Gigpo()) == pytest.approx([2 * part for part in true], abs=1e-12)


@pytest.mark.parametrize(
    ("published", "found"), [(HgpoPublished(), 0.978), (GigpoPublished(), 0.99)]
)
def test_as_published_it_has_another_direction(published: TurnAdvantage, found: float) -> None:
    """The docs state these cosines."""
    assert round(cosine(expected(published), true_gradient()), 3) == found


def by_loops(group: PlayedGroup, place: MemberTurn) -> float:
    """A second formula of `hgpo`, from its definition."""
    member, turn = place
    own = group.to_go[member][turn]
    weights, values = [1.0], [0.0]
    others = [row for number, row in enumerate(group.to_go) if number != member]
    values[0] = sum(row[turn] for row in others if turn < len(row)) / len(others)
    for k in (1, 2, 3):
        if turn + 1 < k:
            continue
        mine = group.keys[member][turn + 1 - k : turn + 1]
        found = [
            group.to_go[number][at]
            for number, keys in enumerate(group.keys)
            if number != member
            for at in range(k - 1, len(keys))
            if keys[at + 1 - k : at + 1] == mine
        ]
        if found:
            weights.append(k + 1.0)
            values.append(sum(found) / len(found))
    return own - sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def test_each_value_is_that_of_the_second_formula() -> None:
    for members in product(world(), repeat=2):
        group = grouped(members)
        for number, played in enumerate(members):
            for turn in range(len(played.turns)):
                place = MemberTurn(number, turn)
                assert Hgpo().of_turn(group, place) == pytest.approx(by_loops(group, place))


def test_without_keys_it_is_the_reward_to_go() -> None:
    group = PlayedGroup([1.5, 0.5], [[1.5, 1.0], [0.5]], [[], []])
    assert [Hgpo().of_turn(group, MemberTurn(0, turn)) for turn in (0, 1)] == [1.0, 1.0]
    assert HgpoPublished().of_turn(group, MemberTurn(0, 0)) == 0.0


def test_tokens_have_the_values_of_their_turns() -> None:
    one = Sample(8, 4, 1, 3, 1.0, [Span(0, 1, 4)], member=0, turns=[(0, 2), (1, 1)])
    given = RewardedSamples(
        [one], {4: [1.0, 0.0]}, {}, turns={4: [[0.0, 1.0], [0.0, 0.0]]}, keys={4: [["a"] * 2] * 2}
    )
    (values,) = Hgpo().of(given)
    assert isinstance(values, list)
    assert token_values(Hgpo(), given).value.tolist() == pytest.approx(
        [values[0]] * 2 + [values[1]]
    )
    nameless = Sample(8, 4, 1, 3, 1.0, [])
    with pytest.raises(ValueError, match="does not name its member"):
        token_values(Hgpo(), given._replace(samples=[nameless]))
