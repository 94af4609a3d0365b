"""Advantages of each kind against numpy, with every way a group can be odd."""

from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from some_values import some

from asyncrl.algorithms.advantage_tensors import Advantages, advantage_tensors
from asyncrl.algorithms.advantages import (
    LARGEST,
    FirstK,
    Lengths,
    MemberAdvantage,
    Parts,
    RewardedSamples,
    Rewards,
)
from asyncrl.algorithms.advantages.normalization import STD_FLOOR
from asyncrl.config.loss_names import ADVANTAGES
from asyncrl.messages import Sample

IN_GROUP = ["grpo", "dr_grpo", "rloo", "mc_grpo"]
KINDS = [
    kind
    for kind, advantage in ADVANTAGES.all().items()
    if issubclass(advantage, MemberAdvantage | FirstK)
]
BY_MEMBER = {
    kind
    for kind, advantage in ADVANTAGES.all().items()
    if issubclass(advantage, MemberAdvantage) and advantage.needs_member
}


def advantages(
    kind: str,
    samples: Sequence[Sample],
    rewards: Rewards,
    parts: Parts,
    lengths: Lengths | None = None,
) -> Advantages:
    """Every member has one token, unless `lengths` says more."""
    ones = {group: [1] * len(members) for group, members in rewards.items()}
    given = RewardedSamples(samples, rewards, parts, lengths=lengths or ones)
    return advantage_tensors(ADVANTAGES.find(kind)(), given)


# Few different values make ties, equal groups and medians that several share.
reward = st.one_of(st.sampled_from([0.0, 1.0, 0.1, -1.0]), st.floats(-3, 3), st.floats(-1e37, 1e37))
groups = st.dictionaries(
    st.integers(0, 50), st.lists(reward, min_size=1, max_size=9), min_size=1, max_size=6
)


def sample(group: int, member: int, reward: float, baseline: float | None = None) -> Sample:
    return Sample(100 * group + member, group, 1, 1, reward, [], baseline, member)


def whole(members: Mapping[int, Sequence[float]]) -> list[Sample]:
    return [
        sample(group, place, reward)
        for group, rewards in members.items()
        for place, reward in enumerate(rewards)
    ]


def by_group(
    got: Advantages, members: Mapping[int, Sequence[float]]
) -> dict[int, NDArray[np.float64]]:
    ends = np.cumsum([len(rewards) for rewards in members.values()])[:-1]
    return dict(zip(members, np.split(got.value.double().numpy(), ends), strict=True))


def std(values: NDArray[np.float64]) -> float:
    """Scaled, so that squares of large rewards fit."""
    largest = float(np.abs(values).max())
    return (
        max(float(np.std(values / largest, ddof=1)) * largest, STD_FLOOR)
        if largest and len(values) > 1
        else STD_FLOOR
    )


def normalized(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (
        np.zeros(len(values))
        if np.all(values == values[0])
        else (values - values.mean()) / std(values)
    )


def reference(kind: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.all(values == values[0]):
        return np.zeros(len(values))
    match kind:
        case "grpo":
            return normalized(values)
        case "dr_grpo":
            return values - values.mean()
        case "rloo":
            return np.array(
                [value - np.delete(values, place).mean() for place, value in enumerate(values)]
            )
        case _:
            return (values - np.median(values)) / std(values)


def close(got: NDArray[np.float64], expected: NDArray[np.float64], scale: float) -> bool:
    """`scale`: of what was subtracted; no float has more digits than that leaves."""
    return bool(np.allclose(got, expected, rtol=1e-5, atol=1e-6 + 1e-10 * scale))


@pytest.mark.parametrize("kind", IN_GROUP)
@given(groups)
def test_uneven_groups_equal_numpy(kind: str, members: dict[int, list[float]]) -> None:
    got = advantages(kind, whole(members), members, {})
    assert got.value.dtype == torch.float32 and got.trainable.dtype == torch.bool
    assert got.value.shape == got.trainable.shape == (sum(map(len, members.values())),)
    for group, values in by_group(got, members).items():
        rewards = np.array(members[group])
        scale = (
            float(np.abs(rewards).max())
            if kind in ("dr_grpo", "rloo")
            else float(np.abs(rewards).max()) / std(rewards)
        )
        assert close(values, reference(kind, rewards), scale)


@pytest.mark.parametrize("kind", some(KINDS))
@given(groups, st.integers(0, 2**32))
def test_a_sample_fares_alike_in_whatever_order_and_micro_batch_it_comes(
    kind: str, members: dict[int, list[float]], seed: int
) -> None:
    samples = [sample(s.group, s.member or 0, s.reward, baseline=0.5) for s in whole(members)]
    expected = advantages(kind, samples, members, {})
    fates = dict(
        zip(
            [s.rollout for s in samples],
            zip(*(t.tolist() for t in expected), strict=True),
            strict=True,
        )
    )
    Random(seed).shuffle(samples)
    for batch in (samples[::2], samples[1::2]):
        named = (
            members
            if ADVANTAGES.find(kind).whole_step
            else {s.group: members[s.group] for s in batch}
        )
        got = advantages(kind, batch, named, {})
        assert [fates[s.rollout] for s in batch] == list(
            zip(*(t.tolist() for t in got), strict=True)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_micro_batch_of_nothing(kind: str) -> None:
    assert [t.shape for t in advantages(kind, [], {}, {})] == [(0,), (0,)]


@pytest.mark.parametrize("kind", IN_GROUP)
@given(groups)
def test_all_equal_is_no_signal_even_where_the_mean_is_not_exact(
    kind: str, members: dict[int, list[float]]
) -> None:
    equal = {group: [rewards[0]] * len(rewards) for group, rewards in members.items()} | {
        99: [0.1] * 3
    }
    assert not advantages(kind, whole(equal), equal, {}).value.any()


@pytest.mark.parametrize(
    "kind", ["grpo", "mc_grpo", "gdpo", "reinforce_pp", "reinforce_pp_baseline"]
)
def test_almost_equal_rewards_are_divided_by_the_floor(kind: str) -> None:
    members = {0: [0.0, 1e-9]}
    low, high = advantages(kind, whole(members), members, {}).value.tolist()
    floors = 2 if kind == "gdpo" else 1
    assert high == pytest.approx(0.5e-9 / STD_FLOOR**floors) and low == pytest.approx(-high)


class TestRloo:
    def test_is_known_by_hand(self) -> None:
        members = {0: [1.0, 0.0, 0.0, 1.0], 1: [0.7]}
        assert advantages("rloo", whole(members), members, {}).value.tolist() == pytest.approx(
            [2 / 3, -2 / 3, -2 / 3, 2 / 3, 0]
        )


class TestMedian:
    @given(groups)
    def test_of_an_odd_number_one_is_left_out_and_it_had_no_advantage(
        self, members: dict[int, list[float]]
    ) -> None:
        got = advantages("mc_grpo", whole(members), members, {})
        ends = np.cumsum([len(rewards) for rewards in members.values()])[:-1]
        for (group, values), trainable in zip(
            by_group(got, members).items(), np.split(got.trainable.numpy(), ends), strict=True
        ):
            assert (~trainable).sum() == len(members[group]) % 2
            assert not values[~trainable].any()
            assert all(
                members[group][place] == np.median(members[group])
                for place in np.flatnonzero(~trainable)
            )

    def test_an_outlier_turns_no_sign(self) -> None:
        """The mean of these is 2.1, so GRPO has it that a reward of 2 is bad."""
        members = {0: [0.0, 0.5, 1.0, 2.0, 7.0]}
        assert (
            advantages("mc_grpo", whole(members), members, {}).value[3]
            > 0
            > advantages("grpo", whole(members), members, {}).value[3]
        )

    @pytest.mark.parametrize("kind", sorted(BY_MEMBER))
    def test_which_member_it_is_must_be_said(self, kind: str) -> None:
        with pytest.raises(
            ValueError,
            match=f"rollout 7 does not name its member of the group, which {kind} needs",
        ):
            advantages(kind, [Sample(7, 0, 1, 1, 1.0, [])], {0: [1.0, 1.0, 0.0]}, {})


parts = st.integers(1, 3).flatmap(
    lambda width: st.dictionaries(
        st.integers(0, 20),
        st.lists(st.lists(reward, min_size=width, max_size=width), min_size=1, max_size=7),
        min_size=1,
        max_size=5,
    )
)


class TestGdpo:
    @given(parts)
    def test_equals_numpy(self, of_groups: dict[int, list[list[float]]]) -> None:
        members = {group: [float(sum(row)) for row in rows] for group, rows in of_groups.items()}
        columns = [column for rows in of_groups.values() for column in np.array(rows).T]
        sums = np.concatenate(
            [
                np.sum([normalized(column) for column in np.array(rows).T], 0)
                for rows in of_groups.values()
            ]
        )
        got = advantages("gdpo", whole(members), members, of_groups).value.double().numpy()
        noise = max(float(np.abs(column).max()) / std(column) for column in columns)
        assert np.allclose(
            got, normalized(sums), rtol=1e-5, atol=(1e-8 + 1e-14 * noise) / std(sums)
        )

    def test_keeps_apart_what_one_reward_would_mix(self) -> None:
        """Two members of one reward, made of different parts: of these the rarer part counts
        more."""
        rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
        members = {0: [sum(row) for row in rows]}
        values = advantages("gdpo", whole(members), members, {0: rows}).value.tolist()
        assert values[0] == values[2] < values[1]

    def test_is_relative_to_the_whole_step(self) -> None:
        members, rows = (
            {0: [1.0, 0.0], 1: [2.0, 0.0]},
            {0: [[1.0, 0.0], [0.0, 0.0]], 1: [[1.0, 1.0], [0.0, 0.0]]},
        )
        small, _, large, _ = advantages("gdpo", whole(members), members, rows).value.tolist()
        assert large == pytest.approx(2 * small)

    def test_without_parts_the_reward_is_the_only_one(self) -> None:
        members = {0: [1.0, 0.0, 3.0], 1: [0.5, 0.0]}
        same = {group: [[reward] for reward in rewards] for group, rewards in members.items()}
        expected = advantages("gdpo", whole(members), members, same).value
        assert torch.equal(
            advantages("gdpo", whole(members), members, {0: same[0]}).value, expected
        )
        assert torch.equal(
            advantages("gdpo", whole(members), members, {0: [[], [], []]}).value, expected
        )

    def test_equal_parts_are_no_signal_in_a_step_that_has_one(self) -> None:
        members = {0: [0.1] * 3, 1: [0.1, 0.7, 0.3]}
        assert advantages("gdpo", whole(members), members, {}).value.tolist()[:3] == [0, 0, 0]

    @pytest.mark.parametrize("rows", [[[1.0]], [[1.0], [1.0, 2.0]], [[1.0], []]])
    def test_parts_must_be_as_many_for_each_member(self, rows: list[list[float]]) -> None:
        with pytest.raises(ValueError, match="group 0 has 2 rewards"):
            advantages("gdpo", whole({0: [1.0, 0.0]}), {0: [1.0, 0.0]}, {0: rows})

    def test_a_part_must_be_a_number(self) -> None:
        with pytest.raises(ValueError, match="must give NoVerdict"):
            advantages(
                "gdpo", whole({0: [1.0, 0.0]}), {0: [1.0, 0.0]}, {0: [[1.0], [float("nan")]]}
            )


uneven = st.dictionaries(
    st.integers(0, 20),
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 0.25, -1.0]), st.integers(1, 9)),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=5,
)


class TestReinforcePlusPlus:
    @given(groups)
    def test_knows_no_groups(self, members: dict[int, list[float]]) -> None:
        flat = np.array([reward for rewards in members.values() for reward in rewards])
        got = advantages("reinforce_pp", whole(members), members, {}).value.double().numpy()
        assert close(got, normalized(flat), float(np.abs(flat).max()) / std(flat))

    def test_a_group_of_equal_rewards_has_a_signal_against_others(self) -> None:
        members = {0: [1.0, 1.0], 1: [0.0, 0.0]}
        assert advantages(
            "reinforce_pp", whole(members), members, {}
        ).value.tolist() == pytest.approx([0.866025] * 2 + [-0.866025] * 2)

    @pytest.mark.parametrize("kind", ["reinforce_pp", "reinforce_pp_baseline"])
    @given(uneven)
    def test_whitens_over_tokens(
        self, kind: str, members: dict[int, list[tuple[float, int]]]
    ) -> None:
        """As verl's `masked_whiten` over the mask of responses: each token has its rollout's
        score, and the variance is unbiased."""
        rewards = {group: [r for r, _ in rows] for group, rows in members.items()}
        lengths = {group: [n for _, n in rows] for group, rows in members.items()}
        scores = {
            group: np.array(of) - (np.mean(of) if kind == "reinforce_pp_baseline" else 0.0)
            for group, of in rewards.items()
        }
        tokens = np.concatenate([np.repeat(scores[group], lengths[group]) for group in members])
        got = advantages(kind, whole(rewards), rewards, {}, lengths)
        for group, values in by_group(got, rewards).items():
            expected = (scores[group] - tokens.mean()) / std(tokens)
            if np.ptp(tokens) > 1e-9:
                assert close(values, expected, 1.0)

    def test_a_long_rollout_counts_once_a_token(self) -> None:
        members, lengths = {0: [1.0], 1: [0.0]}, {0: [3], 1: [1]}
        found = advantages("reinforce_pp", whole(members), members, {}, lengths).value.tolist()
        assert found == pytest.approx([0.25 / 0.5, -0.75 / 0.5])

    @pytest.mark.parametrize("kind", ["reinforce_pp", "reinforce_pp_baseline"])
    def test_lengths_must_be_of_the_members(self, kind: str) -> None:
        members = {0: [1.0, 0.0]}
        with pytest.raises(ValueError, match="lengths came of 1 members"):
            advantages(kind, whole(members), members, {}, {0: [3]})


class TestFirstK:
    def test_is_the_reward_above_its_own_baseline(self) -> None:
        samples = [sample(0, 0, 1.0, baseline=0.25), sample(0, 1, 0.0, baseline=0.5)]
        assert advantages("first_k", samples, {}, {}).value.tolist() == [0.75, -0.5]

    def test_needs_one(self) -> None:
        with pytest.raises(
            ValueError, match="rollout 0 came without the baseline that first_k subtracts"
        ):
            advantages("first_k", [sample(0, 0, 1.0)], {0: [1.0]}, {})

    @pytest.mark.parametrize("broken", [float("nan"), float("inf"), 2e38])
    def test_must_be_a_number(self, broken: float) -> None:
        with pytest.raises(ValueError, match="not finite"):
            advantages("first_k", [sample(0, 0, 1.0, baseline=broken)], {}, {})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "first_k"])
class TestRefused:
    def test_no_verdict_is_no_zero(self, kind: str) -> None:
        with pytest.raises(ValueError, match="group 3 has no member with a verdict"):
            advantages(kind, [sample(3, 0, 0.0)], {3: []}, {})

    @pytest.mark.parametrize("broken", [float("nan"), float("-inf"), 1.1 * LARGEST])
    def test_a_reward_must_be_a_number(self, kind: str, broken: float) -> None:
        with pytest.raises(ValueError, match="must give NoVerdict"):
            advantages(kind, [sample(0, 0, 1.0)], {0: [1.0, broken]}, {})

    def test_the_largest_rewards_still_give_numbers(self, kind: str) -> None:
        members = {0: [LARGEST, -LARGEST, LARGEST], 1: [0.0, 1.0]}
        assert advantages(kind, whole(members), members, {}).value.isfinite().all()

    @pytest.mark.parametrize("member", [0, 2, -1])
    def test_a_sample_must_be_the_member_that_it_says(self, kind: str, member: int) -> None:
        with pytest.raises(
            ValueError, match=r"has a reward of 1\.0, which is not its member's in group 0"
        ):
            advantages(kind, [sample(0, member, 1.0)], {0: [0.0, 1.0]}, {})

    def test_a_group_that_is_not_named(self, kind: str) -> None:
        with pytest.raises(ValueError, match="group 5"):
            advantages(kind, [sample(5, 0, 1.0)], {0: [1.0, 0.0]}, {})


@pytest.mark.parametrize(
    "kind", sorted({"grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"})
)
def test_where_only_the_reward_counts_its_place_need_not_be_said(kind: str) -> None:
    members = {0: [0.0, 1.0, 1.0]}
    unplaced = [Sample(0, 0, 1, 1, reward, []) for reward in members[0]]
    assert torch.equal(
        advantages(kind, unplaced, members, {}).value,
        advantages(kind, whole(members), members, {}).value,
    )
    with pytest.raises(ValueError, match="not its member's"):
        advantages(kind, [Sample(0, 0, 1, 1, 0.5, [])], members, {})
