"""Trained against generated: distances against numpy on the raw facts, and what each kind of bias
looks like."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.experience.audit import BINS, Audit, Facts

AXES = ("length", "age", "attempts", "version")
facts = st.builds(
    Facts, st.integers(0, 40_000), st.integers(0, 200), st.integers(0, 5), st.integers(0, 100_000)
)
lives = st.lists(st.tuples(facts, st.sampled_from([0.0, 0.0, 0.25, 1.0])), min_size=1, max_size=40)
"""(facts, the share that was trained)"""


def audited(rollouts: list[tuple[Facts, float]]) -> Audit:
    audit = Audit()
    for rollout, share in rollouts:
        audit.generated(rollout)
        if share:
            audit.trained(rollout, share)
    return audit


def lengths(counts: dict[int, float]) -> Audit:
    """A hundred rollouts of each length, and what share of them is trained."""
    return audited(
        [(Facts(length, 0, 1, 0), share) for length, share in counts.items() for _ in range(100)]
    )


@given(lives)
def test_the_numbers_are_those_of_the_raw_facts(rollouts: list[tuple[Facts, float]]) -> None:
    audit = audited(rollouts)
    if not any(share for _, share in rollouts):
        assert audit.report() == {}
        return
    report = audit.report()
    assert list(report) == [*AXES, *(f"{name}_mean" for name in AXES)]
    shares = np.array([share for _, share in rollouts])
    for name in AXES:
        values = np.array([getattr(rollout, name) for rollout, _ in rollouts], dtype=np.float64)
        places = np.ceil(np.log2(values + 1)) if name == "length" else values
        width = 2 ** max(0, math.ceil(math.log2((places.max() + 1) / BINS)))
        edges = np.arange(BINS + 1) * width
        generated, trained = (
            np.histogram(places, edges)[0] / len(values),
            np.histogram(places, edges, weights=shares)[0] / shares.sum(),
        )
        assert report[name] == pytest.approx(abs(generated - trained).sum() / 2, abs=1e-12)
        assert 0 <= report[name] <= 1 + 1e-12
        assert report[f"{name}_mean"] == pytest.approx(
            np.average(values, weights=shares) / values.mean() if values.any() else 1
        )


@given(st.lists(facts, min_size=1, max_size=40))
def test_where_everything_is_trained_nothing_is_amiss(rollouts: list[Facts]) -> None:
    report = audited([(rollout, 1.0) for rollout in rollouts]).report()
    assert all(report[name] == 0 and report[f"{name}_mean"] == 1 for name in AXES)


@given(lives, st.randoms(use_true_random=False))
def test_it_does_not_matter_what_ends_first(
    rollouts: list[tuple[Facts, float]], random: object
) -> None:
    shuffled = list(rollouts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert audited(shuffled) == audited(rollouts)


@given(lives, lives)
def test_a_snapshot_goes_on_as_what_it_was_taken_of(
    before: list[tuple[Facts, float]], after: list[tuple[Facts, float]]
) -> None:
    written = msgspec.msgpack.decode(msgspec.msgpack.encode(audited(before)), type=Audit)
    for rollout, share in after:
        written.generated(rollout)
        if share:
            written.trained(rollout, share)
    assert written == audited(before + after)


def test_pain_10_short_ones_first_shows_in_the_length_alone() -> None:
    report = lengths({10: 1.0, 1000: 0.0}).report()
    assert report["length"] == 0.5, "half of what is trained should have been long"
    assert report["length_mean"] == pytest.approx(10 / 505)
    assert report["age"] == report["attempts"] == report["version"] == 0


def test_lengths_that_are_nearly_alike_are_one_bin_and_their_mean_tells_them_apart() -> None:
    report = lengths({600: 1.0, 1000: 0.0}).report()
    assert report["length"] == 0 and report["length_mean"] == 0.75


def test_a_rollout_of_which_half_is_masked_counts_half() -> None:
    report = lengths({10: 1.0, 1000: 0.5}).report()
    assert report["length"] == pytest.approx(1 / 6), "a third instead of a half is long"


def test_what_is_trained_again_weighs_more() -> None:
    audit = lengths({10: 1.0, 1000: 1.0})
    for _ in range(100):
        audit.trained(Facts(1000, 0, 1, 0))
    assert audit.report()["length"] == pytest.approx(1 / 6)


def test_each_axis_sees_its_own_bias() -> None:
    for i, name in enumerate(AXES[1:], 1):
        values = [[8, 2, 1, 5], [8, 2, 1, 5]]
        values[1][i] = 7
        assert [
            axis
            for axis in AXES
            if audited([(Facts(*values[0]), 1.0), (Facts(*values[1]), 0.0)]).report()[axis]
        ] == [name]


def test_a_long_run_takes_no_more_memory() -> None:
    sizes = []
    for versions in (100, 20_000):
        audit = audited(
            [(Facts(version % 5000, version % 3, 1, version), 1.0) for version in range(versions)]
        )
        assert sum(audit.version.generated) == sum(audit.version.trained) == versions
        assert [
            len(axis.generated) for axis in (audit.length, audit.age, audit.attempts, audit.version)
        ] == [BINS] * 4
        sizes.append(len(msgspec.msgpack.encode(audit)))
    assert sizes[1] <= sizes[0] + 4
    assert audit.version.width == 512
