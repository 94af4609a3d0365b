"""Rules that end rollouts: what each says of groups made up by hand, and the prediction that two of
them make, beside a regression by whole matrices."""

from __future__ import annotations

import difflib
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.selection.beginnings import Beginning, JudgedBeginning, beginning
from asyncrl.algorithms.selection.live_group import LiveGroup, LiveMember
from asyncrl.algorithms.selection.prune import Ending, goes_on
from asyncrl.algorithms.selection.prune_balance import Balance
from asyncrl.algorithms.selection.prune_converged import Converged, distance
from asyncrl.algorithms.selection.prune_longest import Longest
from asyncrl.algorithms.selection.prune_unlikely import Unlikely
from asyncrl.algorithms.selection.success_odds import ENOUGH, SuccessOdds, features
from asyncrl.config.selection_names import PRUNES
from asyncrl.messages import PromptFacts

SURE, UNSURE = Beginning(4, -0.1, 0.0, 0.5), Beginning(4, -2.0, 0.0, 0.5)
KNOWN = [JudgedBeginning(SURE, True), JudgedBeginning(UNSURE, False)] * 32


def member(sure: bool, **more: object) -> LiveMember:
    """One with four tokens that are sampled with these log-probabilities."""
    ids, log = struct.pack("<4i", 5, 6, 7, 8), -0.1 if sure else -2.0
    said = LiveMember("live", 4, ids, struct.pack("<4f", *[log] * 4), asked=True)
    return said._replace(**more)


def group(members: Sequence[LiveMember], asked: int = 0) -> LiveGroup:
    asked_about = [m._replace(asked=m.asked and n != asked) for n, m in enumerate(members)]
    return LiveGroup(asked_about, asked, PromptFacts(), KNOWN, len(KNOWN))


@pytest.mark.parametrize(("rate", "odds"), [(0.2, -1.3863), (0.75, 1.0986), (0.0, 0.0), (1.0, 0.0)])
def test_what_a_prediction_weighs(rate: float, odds: float) -> None:
    found = features(Beginning(255, -0.5, 0.25, rate))
    assert found == pytest.approx([1.0, -0.5, 1.0, 0.25, odds], abs=1e-4)


def test_a_likely_failure_goes_on_by_a_draw() -> None:
    rule = Unlikely(0.9)
    assert rule.ends(group([member(True)])) is None
    alike = [JudgedBeginning(UNSURE, n % 8 == 0) for n in range(64)]
    assert rule.ends(group([member(False)])._replace(judged=alike, judged_count=65)) is None, (
        "it is no less likely than others, though all are"
    )
    ending = rule.ends(group([member(False)]))
    assert ending == Ending("unlikely", chance=0.1), "never less"
    assert rule.ends(group([member(False)])._replace(judged=KNOWN[: ENOUGH - 1])) is None
    kept = sum(goes_on(0.3, seed, 7, 8) for seed in range(4000))
    assert kept == pytest.approx(1200, abs=100)
    assert len({goes_on(0.3, 1, key, 8) for key in range(99)}) == 2


def test_a_balanced_group_has_as_many_of_both() -> None:
    rule, right = Balance(0.5), member(True, state="judged", reward=1.0, right=True)
    ended, later = member(False, state="ended"), member(False, asked=False)
    end = Ending("balance")
    assert rule.ends(group([member(True), right, later, later])) == end, "one is right already"
    assert rule.ends(group([member(False), right, later, later])) is None
    assert rule.ends(group([member(True), member(False), later, later])) is None
    assert rule.ends(group([member(False), member(True), right, ended])) == end, "two go on"
    assert rule.ends(group([member(True), right, ended, ended])) is None, "no other is left"
    asked_before = group([member(True), right, later, later])
    again = [m._replace(asked=True) for m in asked_before.members]
    assert rule.ends(asked_before._replace(members=again)) is None


def test_a_group_that_begins_alike_is_ended() -> None:
    ids = [struct.pack("<4i", 1, 2, 3, last) for last in (4, 4, 5)]
    alike = [LiveMember("live", 4, each) for each in ids]
    assert Converged(0.2).ends(LiveGroup(alike, 0)) == Ending("converged")
    assert Converged(1 / 6).ends(LiveGroup(alike, 0)) is None, "two of three pairs differ by 1/4"
    behind = [*alike, LiveMember("live", 3, ids[0][:12])]
    assert Converged(0.9).ends(LiveGroup(behind, 0)) is None, "one may still differ"
    behind[3] = behind[3]._replace(state="ended")
    assert Converged(0.2).ends(LiveGroup(behind, 0)) == Ending("converged")
    assert Converged(0.9).ends(LiveGroup(alike[:1], 0)) is None


def test_a_response_is_cut_at_the_longest_right_answer() -> None:
    of_8 = LiveMember("live", 9, bytes(32), bytes(32))
    caps = {
        cap: Longest(0.5).ends(LiveGroup([of_8], 0, PromptFacts(longest=cap))) for cap in range(12)
    }
    assert caps == {cap: Ending("longest", 8) if 0 < cap <= 8 else None for cap in range(12)}


def test_none_ends_nothing() -> None:
    rule = PRUNES.find("none")(0.5)
    assert rule.ends(group([member(False)])) is None


@given(
    st.lists(
        st.builds(
            JudgedBeginning,
            st.builds(
                Beginning,
                st.integers(1, 999),
                st.floats(-9, 0),
                st.floats(0, 1),
                st.floats(0.1, 0.9),
            ),
            st.booleans(),
        ),
        min_size=ENOUGH,
        max_size=60,
    )
)
def test_a_prediction_is_that_of_newton_steps_with_all_curvature(
    judged: list[JudgedBeginning],
) -> None:
    weights, curvature = np.zeros(5), np.eye(5) / 4
    for one in judged:
        x = np.array(features(one.beginning))
        p = 1 / (1 + np.exp(-np.clip(weights @ x, -30, 30)))
        curvature += p * (1 - p) * np.outer(x, x)
        weights = weights + np.linalg.solve(curvature, x * (one.right - p))
    odds = SuccessOdds()
    assert odds.learn(judged, 99) and odds.learn(judged[:ENOUGH], 99), "it has learned from 99"
    x = np.array(features(SURE))
    due = 1 / (1 + np.exp(-np.clip(weights @ x, -30, 30)))
    assert odds.of(SURE) == pytest.approx(due, abs=1e-6)


def test_a_prediction_learns_anew_from_other_responses() -> None:
    odds = SuccessOdds()
    assert odds.learn(KNOWN, 64) and odds.of(SURE) > 0.9
    assert odds.learn([one for one in KNOWN if not one.right], 65) and odds.of(SURE) < 0.3


@given(st.lists(st.integers(0, 2), max_size=7), st.lists(st.integers(0, 2), max_size=7))
def test_an_edit_distance_is_the_fewest_changes(one: list[int], other: list[int]) -> None:
    found = distance(one, other)
    blocks = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    at_most = sum(max(b - a, d - c) for tag, a, b, c, d in blocks if tag != "equal")
    assert abs(len(one) - len(other)) <= found <= at_most
    assert found == distance(other, one) and (found == 0) == (one == other)


def test_a_beginning_counts_runs_that_came_before() -> None:
    ids = struct.pack("<9i", *[5] * 9)
    assert beginning(ids, struct.pack("<9f", *[-1.0] * 9), 0.25) == Beginning(9, -1.0, 5 / 6, 0.25)
    assert beginning(b"", b"", 0.5) == Beginning(0, 0.0, 0.0, 0.5)
