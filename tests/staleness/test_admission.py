"""The rule of admission, by its numbers and against a run of groups with random speeds, filters and
orders. The theorem has a file of its own (test_window_bound.py)."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.staleness import admission
from asyncrl.staleness.admission import (
    MAX_STARTS_PER_GROUP,
    POLICIES,
    RATE_OVER,
    RATE_PRIOR,
    AdmissionSettings,
    LiveGroups,
    choose_policy,
    live_to_pass,
    pass_rate,
)

finished = st.lists(st.booleans(), max_size=200).map(bytes)
rates = st.floats(0.01, 1)


@dataclass
class Finished:
    """A group that is ready."""

    rewards: list[float]
    turns: list[list[float]] = field(default_factory=list)


@dataclass
class Recent:
    """Groups that finished lately."""

    recent: bytes = b""


@dataclass
class Work:
    """Live work in plain numbers."""

    groups_live: int = 0
    groups_untaken: int = 0
    rollouts_live: int = 0
    complete: list[Finished] = field(default_factory=list)
    history: Recent = field(default_factory=Recent)

    def ready(self) -> list[Finished]:
        return self.complete


def rule(depth: int, batch: int, overprovision: float = 1.0) -> LiveGroups:
    return LiveGroups(AdmissionSettings(depth, batch, overprovision))


def test_one_rule_always_applies_and_settings_choose_it() -> None:
    settings = AdmissionSettings(depth=1, batch_groups=4)
    assert POLICIES[-1].applies(settings)
    assert isinstance(choose_policy(settings), LiveGroups)


def test_fills_up_to_the_limit_and_never_below_zero() -> None:
    assert [rule(*of).max_live for of in ((1, 16), (0, 3), (1, 16, 1.5), (0, 3, 1.1))] == [
        32,
        3,
        40,
        4,
    ]
    starts = [rule(1, 16).may_start(Work(groups_live=live)) for live in (0, 31, 32, 40)]
    assert starts == [32, 1, 0, 0]


def test_single_rollouts_are_counted_in_groups_worth() -> None:
    """Of 32 groups of 8 there are 256 rollouts: another group starts when 8 of them are over."""
    alone = LiveGroups(AdmissionSettings(1, 16, unit="rollout", group_size=8))
    live = (0, 248, 249, 252, 256, 320)
    assert [alone.may_start(Work(rollouts_live=n)) for n in live] == [32, 1, 0, 0, 0, 0]


def test_more_start_for_those_that_the_filter_will_leave_out() -> None:
    """Of 16 needed groups 3 are taken and 1 is ready with a signal. 12 are missing, and 36 of 68
    pass: 23 are to be live for them, and 5 are. At max_lag 0 a step trains no more than 16 in
    time."""
    half = Recent(b"\0\1" * 500)
    ready = [Finished([0.0, 1.0]), Finished([1.0, 1.0])]
    work = Work(groups_live=9, groups_untaken=6, complete=ready, history=half)

    def starts(max_lag: int, kind: str) -> int:
        settings = AdmissionSettings(0, 16, max_lag=max_lag, filter=kind)
        return LiveGroups(settings).may_start(work)

    assert starts(9, "zero_variance") == 23 - 5
    assert starts(0, "zero_variance") == starts(9, "none") == 16 - 9


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        (AdmissionSettings(1, 16), Fraction(16)),
        (AdmissionSettings(1, 16, step_tokens=100, group_size=4, max_new_tokens=10), Fraction(3)),
        (
            AdmissionSettings(
                1,
                16,
                step_tokens=100,
                sizing="difficulty",
                group_size=4,
                group_size_max=16,
                max_new_tokens=10,
            ),
            Fraction(1),
        ),
        (
            AdmissionSettings(
                1, 16, step_tokens=100, unit="rollout", group_size=4, max_new_tokens=10
            ),
            Fraction(10, 4),
        ),
        (AdmissionSettings(1, 2, step_tokens=10**6, group_size=4, max_new_tokens=10), Fraction(4)),
        (AdmissionSettings(1, 2, step_tokens=10**6, unit="rollout", group_size=4), Fraction(4)),
    ],
)
def test_the_smallest_step_has_the_longest_rollouts(
    settings: AdmissionSettings, least: Fraction
) -> None:
    assert LiveGroups(settings).smallest_step == least


@given(
    st.integers(0, 3),
    st.integers(1, 6),
    st.sampled_from([1.0, 1.5, 2.0]),
    st.integers(0, 8),
    st.integers(0, 20),
)
def test_the_widest_window_is_the_last_that_keeps_lag_within_max_lag(
    depth: int, batch: int, overprovision: float, max_lag: int, window: int
) -> None:
    settings = AdmissionSettings(
        depth, batch, overprovision, window, max_lag, filter="zero_variance"
    )
    policy = LiveGroups(settings)
    if window == 0:
        assert policy.worst_lag is None
    elif policy.max_live > batch:
        assert policy.worst_lag is not None
        assert (window <= policy.widest_window) == (policy.worst_lag <= max_lag)
        if window <= policy.widest_window:
            assert policy.max_live <= policy.max_live_filtered <= 4 * policy.max_live


@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 6), st.integers(0, 2**32))
def test_lag_is_bounded_by_depth_and_by_how_many_may_overtake(
    depth: int, batch: int, window: int, seed: int
) -> None:
    """Groups finish in any order; a step takes its groups among the `window + 1` oldest live ones,
    and some groups are dropped."""
    random, admitted = Random(seed), 0
    live: list[
        tuple[int, int, int]
        # admission number, version at admission, groups admitted later that were trained before it
    ] = []
    for version in range(12):
        step: list[tuple[int, int, int]] = []
        while len(step) < batch:
            for _ in range(rule(depth, batch).may_start(Work(len(live) + len(step)))):
                live.append((admitted, version, 0))
                admitted += 1
            if random.random() < 0.2:
                live.pop(random.randrange(len(live)))
            elif live:
                # An older group is overtaken at most `window` times in all, as with a look-ahead
                # window.
                allowed = next(
                    (i for i, group in enumerate(live) if group[2] >= window), len(live) - 1
                )
                chosen = random.randrange(allowed + 1)
                live[:chosen] = [
                    (number, admitted_version, overtaken + 1)
                    for number, admitted_version, overtaken in live[:chosen]
                ]
                step.append(live.pop(chosen))
        assert all(
            version - admitted_version <= depth + math.ceil(window / batch)
            for _, admitted_version, _ in step
        )


def test_the_coordinator_gets_no_torch_from_these() -> None:
    code = (
        "import sys, asyncrl.staleness.lag, asyncrl.staleness.admission, "
        "asyncrl.training.checkpoint_index; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_share_starts_at_one_and_follows_what_finished_lately() -> None:
    assert pass_rate(b"") == 1
    assert pass_rate(b"\0") == pytest.approx(4 / 5), "one group is not much"
    assert pass_rate(b"\0\1" * 500) == pytest.approx(36 / 68)
    assert pass_rate(b"\1" * 1000 + b"\0" * 64) == pass_rate(b"\0" * 64) == pytest.approx(4 / 68)
    assert pass_rate(b"\0" * 1000 + b"\1" * 64) == 1


@given(finished)
def test_the_share_is_one_without_a_filter_and_never_zero(recent: bytes) -> None:
    last = list(recent)[-RATE_OVER:]
    assert pass_rate(recent) == (sum(last) + RATE_PRIOR) / (len(last) + RATE_PRIOR)
    assert 0 < pass_rate(bytearray(recent)) <= 1
    assert (pass_rate(recent) == 1) == all(last)


def test_groups_whose_rewards_to_go_differ_pass_where_turns_are_credited() -> None:
    assert pass_rate(b"\2" * 100) == RATE_PRIOR / (min(100, RATE_OVER) + RATE_PRIOR)
    assert pass_rate(b"\2" * 100, signal="to_go") == 1
    settings = AdmissionSettings(1, 16, filter="zero_variance")
    ready = [Finished([1.0, 1.0], [[0.0, 1.0], [1.0, 0.0]])] * 8
    work = Work(groups_live=32, groups_untaken=32, complete=ready, history=Recent(b"\2" * 100))
    assert LiveGroups(settings).may_start(work) > 0, "none has a signal, so more start"
    assert LiveGroups(settings._replace(signal="to_go")).may_start(work) == 0


def test_what_is_started_for_a_step_of_sixteen() -> None:
    assert live_to_pass(16, 0, 1.0) == 16
    assert live_to_pass(16, 0, 0.5) == 32
    assert live_to_pass(16, 12, 0.5) == 20, (
        "four are missing, so eight of the unfinished are wanted"
    )
    assert live_to_pass(16, 16, 0.5) == 16
    assert live_to_pass(16, 20, 0.5) == 16, "surplus is no reason for more"
    assert live_to_pass(16, 0, 0.01) == 16 * MAX_STARTS_PER_GROUP
    assert live_to_pass(16, 0, 0.5, most=24) == 24, "more could not all be trained within max_lag"
    assert live_to_pass(16, 0, 0.5, most=8) == 16


@given(st.integers(1, 200), st.integers(0, 300), rates, rates, st.none() | st.integers(0, 500))
def test_never_less_than_without_a_filter_nor_more_than_the_bounds(
    needed: int, passed: int, one: float, other: float, most: int | None
) -> None:
    got = live_to_pass(needed, passed, one, most)
    assert needed <= got <= MAX_STARTS_PER_GROUP * needed
    assert live_to_pass(needed, passed, 1.0, most) == needed
    assert most is None or got <= max(needed, most)
    assert live_to_pass(needed, passed, min(one, other), most) >= live_to_pass(
        needed, passed, max(one, other), most
    )
    assert live_to_pass(needed, passed + 1, one, most) <= got
    if most is None:
        missing = max(0, needed - passed)
        assert (
            got
            >= needed + min((1 / one - 1) * missing, (MAX_STARTS_PER_GROUP - 1) * missing) - 1e-6
        )


def waves(batch: int, share: float, seed: int, *, aware: bool) -> tuple[int, int]:
    """Groups that all finish before others start, until a batch has passed: how often that is, and
    how many passed in the end."""
    random, passed, times, recent = Random(seed), 0, 0, b"\0\0\0\1" * 100
    while passed < batch:
        live = live_to_pass(batch, passed, pass_rate(recent) if aware else 1.0)
        passed += sum(random.random() < share for _ in range(live - min(passed, batch)))
        times += 1
    return times, passed


def test_a_step_is_filled_at_once_instead_of_in_turn() -> None:
    """A quarter of the groups pass, and that is known."""
    aware, unaware = (
        [waves(16, 0.25, seed, aware=aware) for seed in range(200)] for aware in (True, False)
    )
    mean = [sum(times for times, _ in runs) / len(runs) for runs in (aware, unaware)]
    assert mean[0] < 3 < 10 < mean[1]
    surplus = [sum(passed for _, passed in runs) / len(runs) - 16 for runs in (aware, unaware)]
    assert surplus[1] == 0 and surplus[0] < 2, "what is left over serves the next step"


def test_the_rule_of_the_page_on_extending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings choose the class once it is listed (`test_extending.py` runs its test)."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs/examples/extending"))
    rule_class = importlib.import_module("live_rollouts").LiveRollouts
    monkeypatch.setattr(admission, "POLICIES", (rule_class, *POLICIES))
    large = AdmissionSettings(0, 2, sizing="difficulty", group_size=8, group_size_max=16)
    (found,) = choose_policy(large).contradictions()
    assert "rollout.group_size_max" in found.keys
    assert type(choose_policy(AdmissionSettings(0, 2))) is LiveGroups
