"""Finished work, judged by hand: what has a signal is kept, however little, and what a rollout is
compared with are the first verdicts, whoever's they are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import product

import pytest
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.eligibility import Eligibility, baseline
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.experience.episode import Turn
from asyncrl.experience.experience import Experience
from asyncrl.experience.group import Group
from asyncrl.messages import Scored


def judged(
    rewards: Sequence[float], order: Sequence[int], versions: Sequence[int] = (0,) * 4
) -> tuple[EventStore, Group]:
    """A group of one token a member, of these versions, judged in this order of members."""
    store = EventStore(Experience(), MemoryLog())
    store.record(e.Published(0))
    prompt = struct.pack("<i", 5)
    store.record(e.Admitted(0, 0, len(rewards), "train", 0, prompt, 1))
    for member in order:
        store.record(e.Leased(member, "rollout-0", 1))
        store.record(e.Extended(member, 1, versions[member], 0, prompt, struct.pack("<f", -1.0)))
        store.record(e.Sealed(member, 1, "length"))
    for member in order:
        store.record(e.Judged(member, Scored(rewards[member])))
    return store, store.experience.groups[0]


def by_rollout(filter: str = "zero_variance") -> Config:
    return configured(
        train={"unit": "rollout", "advantage": "first_k", "prior_visits": 0.0},
        rollout={"k_min": 2, "filter": filter},
    )


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([0.0, 1.0], True),
        ([0.25, 0.5], True),
        ([0.7, 0.7 + 2e-16], True),
        ([-1e-300, 1e-300], True),
        ([0.5, 0.5], False),
        ([0.0, -0.0], False),
    ],
)
def test_a_group_has_a_signal_where_its_rewards_differ_at_all(
    rewards: list[float], kept: bool
) -> None:
    store, group = judged(rewards, [0, 1])
    config = configured(rollout={"filter": "zero_variance"})
    assert bool(Eligibility(store, config).keep_group(group, 0)) == kept
    assert store.experience.ledger.rollouts.discarded.get("zero_variance", 0) == 2 * (not kept)


@pytest.mark.parametrize(
    ("turns", "kept"),
    [
        ([[], []], False),
        ([[0.5, 0.5], [0.5, 0.5]], False),
        ([[0.5, 0.5], [1.0, 0.0]], True),
        ([[1.0], [1.0, 0.0]], False),
        ([[0.5], [0.5, 0.5]], True),
    ],
)
def test_by_turn_a_group_has_a_signal_where_its_rewards_to_go_differ(
    turns: list[list[float]], kept: bool
) -> None:
    """Of equal rewards. An episode that had ended had nothing to come."""
    for credit, expected in (("episode", False), ("to_go", kept)):
        store, group = judged([1.0, 1.0], [0, 1])
        for member, rewards in zip(group.members, turns, strict=True):
            member.turns = [Turn(1, "stop", reward) for reward in rewards]
        train = {"advantage": "rloo", "credit": credit}
        config = configured(rollout={"filter": "zero_variance"}, train=train)
        assert bool(Eligibility(store, config).keep_group(group, 0)) == expected


@pytest.mark.parametrize("keep", ["all", "top"])
def test_a_group_has_a_signal_where_what_lies_below_a_turn_differs(keep: str) -> None:
    """Of the two best the rewards of turns are alike. One has earned them in two branches."""
    store, group = judged([1.0, 1.0, 0.0, 0.0], range(4))
    for member, above in zip(group.members, ((0,), (1,)), strict=False):
        member.turns = [Turn(1, "stop"), Turn(1, "stop"), Turn(1, "stop", 1.0, above=above)]
    for credit in ("below", "to_go"):
        config = configured(
            rollout={"filter": "zero_variance", "group_size": 4},
            train={"advantage": "rloo", "credit": credit, "keep": keep},
            agent={"run": "agents:play"},
        )
        kept = Eligibility(store, config).keep_group(group, 0)
        assert bool(kept) == (keep == "all" or credit == "below")


@pytest.mark.parametrize(
    ("keep", "rewards", "filter", "kept"),
    [
        ("all", [0.0, 1.0, 0.0, 0.0], "zero_variance", [0, 1, 2, 3]),
        ("top", [0.0, 1.0, 0.0, 0.5], "zero_variance", [1, 3]),
        ("bottom", [0.0, 1.0, 0.0, 0.5], "none", [0, 2]),
        ("top_bottom", [0.0, 0.75, 1.0, 0.5], "zero_variance", [0, 2]),
        # what is left has no signal, so that the group leaves under the filter's name
        ("bottom", [0.0, 1.0, 0.0, 0.5], "zero_variance", []),
        ("top", [1.0, 1.0, 0.0, 0.0], "zero_variance", []),
        ("top_bottom", [0.5, 0.5, 0.5, 0.5], "zero_variance", []),
        ("roc", [0.0, 0.0, 0.0, 1.0], "zero_variance", None),
    ],
)
def test_of_a_group_that_passes_the_chosen_members_are_trained(
    keep: str, rewards: list[float], filter: str, kept: list[int] | None
) -> None:
    store, group = judged(rewards, range(4))
    config = configured(
        rollout={"filter": filter, "group_size": 4, "k_min": 2}, train={"keep": keep}
    )
    eligibility = Eligibility(store, config)
    found = [member.id for member in eligibility.keep_group(group, 0)]
    assert found == kept if kept is not None else (len(found) == 2 and 3 in found)
    if kept == []:
        assert store.experience.ledger.rollouts.discarded == {"zero_variance": 4}
        return
    again = [member.id for member in Eligibility(store, config).keep_group(group, 0)]
    assert again == found == [member.id for member in eligibility.keep_group(group, 0)]


def test_a_choice_depends_on_the_seed_and_the_groups_place_alone() -> None:
    """Not on its number, on what else waits, or on the step. RoC may keep any of wrong answers."""
    chosen: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for number, key, seed in product(range(3), range(4), range(3)):
        store, _ = judged([0.0] * 4, range(4))
        prompt = struct.pack("<i", 5)
        for later in range(1, number + 2):  # the last has the key
            x, last = store.experience, later == number + 1
            first = x.next_rollout
            group_key = 16 * key if last else 999
            store.record(e.Admitted(later, first, 4, "train", 0, prompt, 1, key=group_key))
            for member in range(first, first + 4):
                store.record(e.Leased(member, "rollout-0", 1))
                store.record(e.Extended(member, 1, 0, 0, prompt, struct.pack("<f", -1.0)))
                store.record(e.Sealed(member, 1, "length"))
                store.record(e.Judged(member, Scored(0.0)))
        config = configured(
            rollout={"filter": "none", "group_size": 4}, train={"keep": "roc"}, run={"seed": seed}
        )
        kept = Eligibility(store, config).keep_group(store.experience.groups[number + 1], number)
        places = tuple(member.id - first for member in kept)
        chosen.setdefault((key, seed), set()).add(places)
    assert all(len(choices) == 1 for choices in chosen.values())
    assert len(set.union(*chosen.values())) > 3, "and draws differ"


@pytest.mark.parametrize("on_stale", ["drop", "restart", "mask"])
@pytest.mark.parametrize("keep", ["top", "bottom"])
def test_only_what_would_be_trained_is_too_old(keep: str, on_stale: str) -> None:
    """The members with the rewards 0 and 0.5 have tokens of version 0, too old for step 3."""
    store, group = judged([0.0, 0.5, 0.75, 1.0], range(4), versions=[0, 0, 3, 3])
    config = configured(
        rollout={"group_size": 4, "filter": "none"},
        train={"keep": keep},
        staleness={"max_lag": 2, "on_stale": on_stale},
    )
    kept = Eligibility(store, config).keep_group(group, 3)
    assert [member.id for member in kept] == ([2, 3] if keep == "top" else [])
    discarded = store.experience.ledger.rollouts.discarded
    assert discarded == ({} if keep == "top" else {"stale": 4})
    assert bool(store.experience.restarts) == (keep == "bottom" and on_stale == "restart")


@pytest.mark.parametrize(("reward", "kept"), [(0.5, False), (0.5 + 1e-15, True), (0.25, True)])
def test_a_rollout_has_a_signal_where_it_is_not_its_baseline(reward: float, kept: bool) -> None:
    store, group = judged([reward, 0.25, 0.75, 9.0], [1, 2, 3, 0])
    eligibility = Eligibility(store, by_rollout())
    assert eligibility.keep_rollout(group, group.members[0], 0) == kept


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_a_baseline_is_of_the_others_that_were_judged_first(order: tuple[int, ...]) -> None:
    """In the order of their verdicts, not of members, and not by reward."""
    rewards = [8.0, 1.0, 4.0, 2.0]
    _, group = judged(rewards, order)
    for member in group.members:
        first = [rewards[other] for other in order if other != member.id]
        assert group.others(member) == first
        assert baseline(group, member, by_rollout()) == sum(first[:2]) / 2
