"""Work that a journal tells of: the groups that would have passed the filter, had they been
smaller."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config import ConfigError, read
from asyncrl.experience import events as e
from asyncrl.explain.run_files import RunFiles
from asyncrl.messages import NoVerdict, Scored
from asyncrl.sizing.calibrate import (
    TrainerSeen,
    accepted_of,
    trainer_costs,
    verdict_model,
    work_seen,
)
from asyncrl.sizing.cluster_models import VerdictModel

ONE = np.ones(1, np.int32).tobytes()


def journal(groups: list[list[float | None]], split: str = "train") -> list[e.AnyEvent]:
    """The events of groups with these rewards; None: no verdict."""
    events: list[e.AnyEvent] = []
    for number, rewards in enumerate(groups):
        first = 10 * number
        events.append(e.Admitted(number, first, len(rewards), split, number, ONE, 4))  # type: ignore[arg-type]
        for place, reward in enumerate(rewards):
            verdict = NoVerdict("timeout") if reward is None else Scored(reward)
            events.append(e.Judged(first + place, verdict))
    return events


def alike(events: list[e.AnyEvent], begin: int = 0, end: int = 1) -> list[list[int]]:
    return work_seen(iter(enumerate(events, 1)), begin, end).alike


def test_groups_are_counted_by_their_rewards_where_all_have_one() -> None:
    events = journal([[1.0, 0.0, 0.0, 0.5], [1.0] * 4, [1.0, None, 0.0, 0.0]])
    assert [sorted(counts) for counts in alike(events)] == [[1, 1, 2], [4]]
    assert alike(journal([[1.0, 0.0]], "evaluation")) == []


def test_each_group_is_whole_by_its_own_size() -> None:
    first, second = journal([[1.0, 0.0, 0.0]]), journal([[], [1.0, 1.0]])[1:]
    events = [first[0], second[0], *first[1:], *second[1:]]
    assert alike(events) == [[1, 2], [2]]


def test_a_group_that_grows_counts_once_with_all_that_it_has_in_the_end() -> None:
    admitted = e.Admitted(0, 0, 2, "train", 0, ONE, 4, most=5)
    judged = [e.Judged(rollout, Scored(float(rollout == 7))) for rollout in (0, 1, 7)]
    grown = [admitted, *judged[:2], e.Grown(0, 3, 7), judged[2]]
    assert alike(grown) == []
    taken = e.Taken(0, [0, 1, 7])
    seen = work_seen(iter(enumerate([*grown, e.Grown(0, 3, 8), taken], 1)), 0, 1)
    assert [sorted(counts) for counts in seen.alike] == [[1, 2]] and seen.passed == 1
    full = [msgspec.structs.replace(admitted, most=3), *grown[1:]]
    assert [sorted(counts) for counts in alike(full)] == [[1, 2]]


def test_groups_of_before_and_after_are_left_out() -> None:
    events = journal([[1.0, 0.0]])
    assert alike([*events, e.Published(1)], 1, 2) == []
    assert alike([e.Published(1), *events], 1, 2) == [[1, 1]]


@given(
    st.integers(2, 6).flatmap(
        lambda size: st.lists(
            st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=size, max_size=size),
            min_size=1,
            max_size=4,
        )
    )
)
def test_the_share_of_smaller_groups_is_that_over_all_their_parts(
    groups: list[list[float]],
) -> None:
    found = accepted_of(alike(journal([[*group] for group in groups])))
    if not any(len(set(group)) > 1 for group in groups):
        assert found is None
        return
    assert found is not None and [size for size, _ in found] == [*range(2, len(groups[0]) + 1)]
    for size, share in found:
        parts = [part for group in groups for part in itertools.combinations(group, size)]
        due = sum(len(set(part)) > 1 for part in parts) / len(parts)
        assert share == pytest.approx(due)


def test_where_nothing_was_measured_nothing_is_said() -> None:
    assert accepted_of([]) is None
    assert accepted_of([[2], [1, 2]]) is None, "their sizes differ"
    assert accepted_of([[1]]) is None


def test_a_run_without_a_filter_and_without_signal_is_forecast_as_it_was() -> None:
    taken = e.Taken(0, [0, 1, 10, 11])
    without = work_seen(iter(enumerate([*journal([[0.0, 0.0], [1.0, 1.0]]), taken], 1)), 0, 1)
    model, notes = verdict_model(without)
    assert (model.share(2), model.share(8)) == (1.0, 1.0)
    assert "differ in none of the 2 groups" in notes[-1]

    chosen = e.Taken(0, [0, 10], [1, 11])  # of two groups, a member each
    seen = work_seen(iter(enumerate([*journal([[0.0, 0.0], [1.0, 1.0]]), chosen], 1)), 0, 1)
    assert seen.passed == without.passed == 2

    signal = work_seen(iter(enumerate([*journal([[0.0, 1.0], [1.0, 1.0]]), taken], 1)), 0, 1)
    model, notes = verdict_model(signal)
    assert model.share(2) == 0.5 and len(notes) == 1


def test_a_share_lies_on_the_line_and_behind_it_is_the_last() -> None:
    verdict = VerdictModel(accepted=0.9, accepted_of=[(2, 0.2), (4, 0.4), (8, 0.5)])
    shares = [verdict.share(size) for size in (2, 3, 4, 6, 8, 64)]
    assert shares == pytest.approx([0.2, 0.3, 0.4, 0.45, 0.5, 0.5])
    assert VerdictModel(accepted=0.9).share(3) == 0.9
    with pytest.raises(ValueError, match="rising"):
        VerdictModel(accepted_of=[(4, 0.4), (2, 0.2)])
    assert math.isclose(VerdictModel(accepted_of=[(4, 0.4)]).share(2), 0.4)


def test_a_trainers_costs_say_how_well_runs_agree() -> None:
    one = TrainerSeen(3.0, 10_000, 20)
    assert "Give runs with another" in trainer_costs([one])[2][0]
    assert trainer_costs([one, TrainerSeen(2.5, 5_000, 20)]).unknown == []
    [why] = trainer_costs([one, TrainerSeen(4.0, 5_000, 20)]).unknown
    assert "contradict each other" in why
    fits = trainer_costs([one, TrainerSeen(2.2, 5_000, 20), TrainerSeen(2.9, 5_000, 20)])
    assert fits.batch_s and "only within" in fits.unknown[0]


def test_numbers_are_read_without_the_users_modules(tmp_path: Path) -> None:
    """A run with code that is not here any more, and with settings that need it."""
    toml = tmp_path / "run.toml"
    toml.write_text(
        '[engine]\nslots = 24\n[rollout]\ngroup_size = 6\nk_min = 3\nsizing = "mine:Own"\n'
        '[train]\nunit = "rollout"\nadvantage = "mine:Median"\nbatch_groups = 5\n'
        '[task]\nverifier = "./gone.py:judge"\n'
    )
    with pytest.raises(ConfigError):
        read(toml)
    config = RunFiles(tmp_path).numbers
    assert (config.engine.slots, config.rollout.group_size, config.train.batch_groups) == (24, 6, 5)
