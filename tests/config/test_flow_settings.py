"""Settings of flow that contradict each other are refused with the keys and the remedy; the
window's rule against the bound itself."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from without_rules import without_rules

from asyncrl.config import Config
from asyncrl.config.rules import contradictions
from asyncrl.staleness.admission import AdmissionSettings, LiveGroups
from asyncrl.staleness.corrections import SequenceTis


def worst_lag(depth: int, batch: int, overprovision: float, window: int) -> int:
    lag = LiveGroups(AdmissionSettings(depth, batch, overprovision, window)).worst_lag
    assert lag is not None
    return lag


def refused(**sections: dict[str, object]) -> list[tuple[tuple[str, ...], str]]:
    with without_rules():
        config = msgspec.convert(sections, Config)
    return list(contradictions(config))


ALONE: dict[str, object] = {"unit": "rollout", "advantage": "first_k"}

PRUNED = {"prune": "unlikely", "prune_after": 8, "prune_weight": "inverse", "filter": "none"}

FORKED = {"fork": "depths", "fork_after": 8, "fork_leaves": 4}

NO_FORKS: list[tuple[str, str, object]] = [
    ("agent", "run", "a.py:b"),
    ("foreign", "source", "file"),
    ("share", "path", "groups"),
    ("rollout", "sizing", "dars"),
    ("train", "replay_groups", 1),
    ("train", "router_replay", True),
    ("staleness", "finish_on", "own"),
    ("train", "advantage", "grpo"),
    ("train", "credit", "to_go"),
    ("train", "unit", "rollout"),
    ("train", "keep", "top"),
    ("rollout", "prune", "balance"),
    ("rollout", "truncated", "mask"),
    ("train", "group_weight", "mean"),
    ("train", "loss_mean", "rollout"),
    ("train", "objective", "topr"),
    ("reference", "coefficient", 0.1),
    ("teacher", "coefficient", 0.1),
    ("rollout", "k_min", 3),
    ("rollout", "group_size", 4),
    ("rollout", "group_size", 10),
    ("rollout", "fork_after", 32),
]
"""Settings with which no rollout may fork."""


@pytest.mark.parametrize(("table", "name", "value"), NO_FORKS)
def test_what_would_bias_a_tree_or_knows_of_none_is_refused(
    table: str, name: str, value: object
) -> None:
    plain: dict[str, dict[str, object]] = {"rollout": FORKED, "train": {"advantage": "rloo"}}
    assert not [keys for keys, _ in refused(**plain) if "rollout.fork" in " ".join(keys)]
    found = refused(**plain | {table: plain.get(table, {}) | {name: value}})
    key = "advantage" if name == "credit" else name
    of_forks = [keys for keys, _ in found if any(".fork" in other for other in keys)]
    assert any(f"{table}.{key}" in keys for keys in of_forks), found


def test_a_correction_by_rollout_is_refused_where_rollouts_fork() -> None:
    with without_rules():
        plain: dict[str, object] = {"rollout": FORKED, "train": {"advantage": "rloo"}}
        config = msgspec.convert(plain, Config)
        staleness = msgspec.structs.replace(config.staleness, correction=[SequenceTis(hi=2.0)])
        config = msgspec.structs.replace(config, staleness=staleness)
    (found,) = [why for keys, why in contradictions(config) if "rollout.fork" in keys]
    assert found.startswith("sequence_tis judges a rollout by all of its tokens")


@pytest.mark.parametrize(
    ("sections", "keys", "remedy"),
    [
        (
            {"staleness": {"depth": 3, "max_lag": 2}},
            {"staleness.depth", "staleness.max_lag"},
            "lower depth",
        ),
        (
            {"staleness": {"depth": 0, "max_lag": 0}, "rollout": {"overprovision": 1.5}},
            {"rollout.overprovision", "staleness.max_lag"},
            "set overprovision to 1",
        ),
        (
            {"staleness": {"depth": 0, "max_lag": 0}, "train": {"step_tokens": 100}},
            {"train.step_tokens", "staleness.max_lag"},
            "set step_tokens to 0",
        ),
        (
            {"train": ALONE, "rollout": {"sizing": "difficulty"}},
            {"train.unit", "rollout.sizing"},
            "sizing to fixed",
        ),
        (
            {"train": ALONE, "staleness": {"on_stale": "restart"}},
            {"train.unit", "staleness.on_stale"},
            "set unit to group",
        ),
        (
            {"rollout": {"sizing": "difficulty", "group_size": 8, "group_size_max": 4}},
            {"rollout.group_size_max", "rollout.group_size"},
            "raise group_size_max",
        ),
        (
            {"rollout": PRUNED | {"prune": "none"}, "train": {"advantage": "rloo"}},
            {"rollout.prune_weight", "rollout.prune"},
            "prune_weight to none",
        ),
        (
            {"rollout": PRUNED, "train": {"advantage": "grpo"}},
            {"rollout.prune_weight", "train.advantage"},
            "set advantage to rloo",
        ),
        (
            {"rollout": PRUNED | {"filter": "zero_variance"}, "train": {"advantage": "rloo"}},
            {"rollout.prune_weight", "rollout.filter"},
            "set filter to none",
        ),
        (
            {"rollout": PRUNED, "train": {"advantage": "rloo", "keep": "top"}},
            {"rollout.prune_weight", "train.keep"},
            "set keep to all",
        ),
        *(
            (
                {"rollout": PRUNED | {"prune": rule}, "train": {"advantage": "rloo"}},
                {"rollout.prune_weight", "rollout.prune"},
                "set prune to unlikely",
            )
            for rule in ("balance", "converged", "longest")
        ),
        (
            {"rollout": {"prune": "converged", "prune_after": 32}},
            {"rollout.prune_after", "rollout.max_new_tokens"},
            "lower prune_after",
        ),
        (
            {"rollout": {"prune": "balance", "prune_after": 8, "k_min": 8}},
            {"rollout.prune", "rollout.k_min", "rollout.group_size"},
            "lower k_min",
        ),
        (
            {"rollout": {"prune": "unlikely", "prune_after": 8}, "agent": {"run": "http"}},
            {"rollout.prune", "agent.run"},
            "set prune to none",
        ),
        (
            {"agent": {"run": "http", "sandbox": "bwrap"}},
            {"agent.run", "agent.sandbox"},
            "set sandbox to none",
        ),
        (
            {"agent": {"run": ("a", "b"), "paths": ("c",)}},
            {"agent.paths", "agent.sandbox"},
            "set sandbox to bwrap",
        ),
    ],
)
def test_each_contradiction_names_its_keys_and_the_remedy(
    sections: dict[str, dict[str, object]], keys: set[str], remedy: str
) -> None:
    (found,) = refused(**sections)
    assert set(found[0]) == keys and remedy in found[1]


@pytest.mark.parametrize("overprovision", [1.0, 2.0])
@pytest.mark.parametrize(("depth", "max_lag"), [(0, 2), (1, 1), (1, 2), (2, 4)])
def test_a_window_whose_lag_would_be_dropped_is_refused_and_the_widest_that_is_not_is_named(
    depth: int, max_lag: int, overprovision: float
) -> None:
    batch = 4

    def of(window: int) -> list[str]:
        staleness = {"depth": depth, "max_lag": max_lag, "window": window, "on_stale": "drop"}
        return [
            sentence
            for keys, sentence in refused(
                train={"batch_groups": batch},
                staleness=staleness,
                rollout={"overprovision": overprovision},
            )
            if "staleness.window" in keys
        ]

    for window in range(1, 20):
        lag = worst_lag(depth, batch, overprovision, window)
        assert bool(of(window)) == (lag > max_lag)
        if said := of(window):
            assert f"its lag is {lag}" in said[0] and f"set max_lag to {lag}" in said[0]
            widest = sum(
                1
                for _ in itertools.takewhile(
                    lambda w: worst_lag(depth, batch, overprovision, w) <= max_lag, range(1, 99)
                )
            )
            assert ("set window to" in said[0]) == (widest > 0)
            assert not widest or f"set window to {widest} or less" in said[0]


def test_where_tokens_close_a_step_the_smallest_step_counts() -> None:
    """2 groups of 4 rollouts of 10 tokens make 80: so 4 may be live, one may wait behind all
    others, and steps take 2."""
    rollout: dict[str, object] = {"group_size": 4, "max_new_tokens": 10}
    train: dict[str, object] = {"batch_groups": 2}
    for step_tokens, worst in ((80, 1), (41, 1), (40, 3), (1, 3), (160, 0), (1000, 0)):
        for max_lag in range(1, 5):
            staleness = {"depth": 1, "max_lag": max_lag, "window": 1, "on_stale": "drop"}
            found = refused(
                rollout=rollout, train=train | {"step_tokens": step_tokens}, staleness=staleness
            )
            assert bool(found) == (worst > max_lag), (step_tokens, max_lag)


def test_where_tokens_close_a_step_of_single_rollouts_it_may_be_less_than_a_group() -> None:
    """40 tokens are 4 rollouts of 10, half a group of 8: of 4 groups that may be live the last
    rollout is trained in the eighth step."""
    for max_lag in range(1, 9):
        found = refused(
            rollout={"group_size": 8, "max_new_tokens": 10},
            train=ALONE | {"batch_groups": 2, "step_tokens": 40},
            staleness={"depth": 1, "max_lag": max_lag, "window": 1, "on_stale": "drop"},
        )
        assert bool(found) == (max_lag < 7)
