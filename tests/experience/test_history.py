"""The history of prompts: sums against a fold by hand, a prior that never sees its own group,
and a snapshot that goes on alike."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.selection import prompt_history as history
from asyncrl.algorithms.selection.prompt_history import BELOW, KEPT, TO_GO, History, with_signal

rewards = st.lists(st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0, 2.0]), max_size=5)
visits = st.lists(st.tuples(st.integers(0, 4), rewards, st.integers(0, 2)), max_size=25)
"""(item, rewards, members without one)"""


def played(groups: list[tuple[int, list[float], int]], into: History | None = None) -> History:
    into = into or History()
    for prompt_index, seen, missing in groups:
        into.admit(prompt_index, into.cursor + 1)
        into.record(prompt_index, seen, len(seen) + missing)
    return into


def again(written: History) -> History:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=History)


@given(visits)
def test_the_sums_are_those_of_all_visits_with_the_earlier_ones_discounted(
    groups: list[tuple[int, list[float], int]],
) -> None:
    got = played(groups)
    for prompt_index in range(5):
        mine = [(seen, missing) for other, seen, missing in groups if other == prompt_index]
        weights = [KEPT ** (len(mine) - 1 - i) for i in range(len(mine))]
        count = sum(w * len(seen) for w, (seen, _) in zip(weights, mine, strict=True))
        total = sum(
            w * reward for w, (seen, _) in zip(weights, mine, strict=True) for reward in seen
        )
        solved = sum(
            w for w, (seen, _) in zip(weights, mine, strict=True) for reward in seen if reward >= 1
        )
        assert got.prior(prompt_index) == pytest.approx((total / count, count) if count else (0, 0))
        assert got.posterior(prompt_index) == pytest.approx((1 + solved, 1 + count - solved))
        assert (prompt_index in got.seen) == bool(mine)
        if mine:
            last, missing = mine[-1]
            assert got.seen[prompt_index].visits == len(mine)
            assert got.seen[prompt_index].easy == (
                not missing and all(reward >= 1 for reward in last)
            )
    assert got.cursor == len(groups)
    assert list(got.recent) == [len({*seen}) > 1 for _, seen, _ in groups]


def test_it_knows_which_groups_differ_and_which_in_their_rewards_to_go_alone() -> None:
    history = History()
    history.admit(3, 1)
    for rewards, differ_to_go, differ_below in (
        ([1.0, 0.0], True, True),
        ([1.0, 1.0], True, False),
        ([1.0, 1.0], True, True),
        ([1.0, 1.0], False, True),
        ([1.0, 1.0], False, False),
    ):
        history.record(3, rewards, 2, differ_to_go=differ_to_go, differ_below=differ_below)
    assert list(history.recent) == [1, TO_GO, TO_GO + BELOW, BELOW, 0]
    assert with_signal(history.recent) == 1
    assert with_signal(history.recent, "to_go") == with_signal(history.recent, "below") == 3


@given(visits, visits)
def test_a_snapshot_goes_on_as_what_it_was_taken_of(
    before: list[tuple[int, list[float], int]], after: list[tuple[int, list[float], int]]
) -> None:
    assert played(after, again(played(before))) == played(before + after)


@given(visits, rewards, rewards)
def test_what_a_group_is_given_as_prior_does_not_depend_on_it(
    groups: list[tuple[int, list[float], int]], one: list[float], two: list[float]
) -> None:
    priors = []
    for own in (one, two):
        known = played(groups)
        known.admit(0, known.cursor + 1)
        priors.append(known.prior(0))
        known.record(0, own, 5)
    assert priors[0] == priors[1] == played(groups).prior(0)


def test_solved_by_every_member_means_every_member() -> None:
    known = History()
    known.admit(3, 1)
    for seen, size, easy in [
        ([1.0, 1.0], 2, True),
        ([1.0, 1.0], 3, False),
        ([1.0, 0.99], 2, False),
        ([1.0, 1.5], 2, True),
        ([], 2, False),
    ]:
        known.record(3, seen, size)
        assert known.seen[3].easy is easy, (seen, size)


def test_an_item_is_admitted_before_it_is_recorded() -> None:
    with pytest.raises(KeyError):
        History().record(0, [1.0], 1)


def test_memory_is_bounded_by_the_items_and_by_what_is_recent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "RECENT", 8)
    sizes = []
    for times in (10, 100):
        known = played(
            [
                (prompt_index, [0.0, 1.0 * (prompt_index % 2)], 0)
                for _ in range(times)
                for prompt_index in range(50)
            ]
        )
        assert list(known.recent) == [0, 1] * 4
        sizes.append(len(msgspec.msgpack.encode(known)))
    assert sizes[1] < sizes[0] + 50 * 8, "visits of the same items cost a few digits at most"
    assert sizes[1] < 50 * 48
