"""Themes of simulated runs: one of the edges of what settings allow, or one kind of trouble."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asyncrl.config import Config
from asyncrl.simulation.drawn_settings import Settings
from asyncrl.simulation.fake_world import Speeds
from asyncrl.simulation.policy import Rewards


class Shape(NamedTuple):
    """One run: its settings, how long things take, its rewards, and the kinds of fault that it has
    beside those of its plan. `steady` agents, where there are any, do the same in each attempt, and
    those that `cling` leave calls open at their end."""

    config: Config
    speeds: Speeds
    rewards: Rewards
    kinds: Sequence[str] = ()
    steady: bool = True
    cling: bool = False


@dataclass
class Draft:
    """A shape that is being drawn."""

    settings: Settings
    speeds: Speeds
    rewards: Rewards = field(default_factory=Rewards)
    kinds: list[str] = field(default_factory=list)

    def change(self, **sections: dict[str, Any]) -> None:
        """Change these settings, section by section."""
        for name, values in sections.items():
            self.settings[name] |= values


Theme = Callable[[Draft, random.Random], None]
THEMES: list[Theme] = []


def theme(function: Theme) -> Theme:
    """Register a theme."""
    THEMES.append(function)
    return function


def _ahead(shape: Draft, draw: random.Random, lags: tuple[int, ...] = (1, 2, 4)) -> None:
    """Let whole groups be trained some versions after they were sampled."""
    lag = draw.choice(lags)
    shape.change(
        train={"unit": "group", "advantage": "grpo", "step_tokens": 0, "replay_groups": 0},
        staleness={"max_lag": lag, "depth": 1, "window": 0, "on_stale": "mask"},
        task={"curriculum": "in_order", "epochs": 0, "train_size": 1000},
        rollout={"sizing": "fixed", "overprovision": 1.0, "filter": "none", "max_resumes": 0},
    )


@theme
def one_version(shape: Draft, draw: random.Random) -> None:
    """Engines that hold one version, as servers do."""
    shape.change(
        engine={"kind": "sglang", "sglang": {"launch": ["none, as engines are fakes"]}},
        staleness={"finish_on": "mixed"},
        task={"eval_size": 5},
        rollout={"max_new_tokens": 20},
    )


@theme
def adaptive_leases(shape: Draft, draw: random.Random) -> None:
    """So many leases, and such long ones, that their deadlines follow from how long they take."""
    _ahead(shape, draw, (2,))
    shape.change(
        rollout={"lease_s": 120.0, "group_size": 4, "k_min": 2, "max_new_tokens": 8},
        train={"batch_groups": 6, "steps": 6},
        engine={"slots": 4, "chunk_tokens": 4},
    )
    shape.kinds += ["engine_slow", "stop_rollout"]


@theme
def many_micro_batches(shape: Draft, draw: random.Random) -> None:
    """Steps of some dozens of micro-batches, given at once or one by one."""
    _ahead(shape, draw, (0, 1))
    shape.change(
        engine={"context_tokens": 24, "slots": 8},
        rollout={"max_new_tokens": 20, "group_size": 3, "k_min": 2},
        train={
            "micro_tokens": 24,
            "batch_groups": 10,
            "steps": 3,
            "advantage": draw.choice(("reinforce_pp", "grpo")),
        },
    )
    if not shape.settings["staleness"]["max_lag"]:
        shape.change(staleness={"depth": 0})


@theme
def slow_trainer(shape: Draft, draw: random.Random) -> None:
    """Steps and checkpoints that take longer than a publication's deadline."""
    shape.speeds.step_s, shape.speeds.save_s = 12.0, 25.0
    shape.change(train={"checkpoint_every": 1})


@theme
def tiny(shape: Draft, draw: random.Random) -> None:
    """The smallest of everything."""
    shape.change(
        engine={"context_tokens": 8, "slots": 1, "chunk_tokens": 1},
        rollout={"max_new_tokens": draw.choice((1, 2)), "attempts": 1},
        train={"micro_tokens": 8, "batch_groups": 1},
        reward={"concurrency": 1, "actors": 1},
        supervision={"restarts": 2},
        staleness={"window": 0},
    )
    if shape.settings["staleness"]["max_lag"]:
        shape.change(rollout={"max_resumes": 1}, train={"step_tokens": 1})


@theme
def hopeless(shape: Draft, draw: random.Random) -> None:
    """Rewards that are all equal, or are for every other prompt, and a filter that lets none of
    them pass."""
    shape.change(
        rollout={"filter": "zero_variance", "filter_patience": draw.choice((1, 6, 20))},
        task={"epochs": 0},
    )
    shape.rewards = Rewards(equal=True, but=draw.choice((0, 2)))
    if shape.rewards.but:  # after a crash it has steps to make again before it gives up
        shape.kinds += ["transfer_flaky"]


@theme
def impatient(shape: Draft, draw: random.Random) -> None:
    """A filter that leaves out many groups, and not many in a row."""
    _ahead(shape, draw)
    shape.change(
        rollout={"filter": "zero_variance", "filter_patience": 5, "group_size": 2, "k_min": 2},
        train={"batch_groups": 3, "steps": 6},
    )


@theme
def several_rewards(shape: Draft, draw: random.Random) -> None:
    """Rewards of several parts, and prompts that come a second time."""
    shape.rewards = Rewards(parts=2)
    unit = shape.settings["train"]["unit"]
    shape.change(
        train={"advantage": "gdpo" if unit == "group" else "first_k"},
        task={"epochs": 2, "train_size": 7},
    )
    shape.kinds += ["verifier_changed", "garbage_vocabulary"]


@theme
def own_version(shape: Draft, draw: random.Random) -> None:
    """Rollouts that end under the version they began with, while everything crashes."""
    _ahead(shape, draw)
    shape.change(staleness={"finish_on": "own"}, rollout={"max_new_tokens": 20})
    shape.speeds.step_s = 0.02
    shape.kinds += ["kill_rollout", "engine_crashes", "kill_everything", "abort_with_partials"]


@theme
def lonely_engine(shape: Draft, draw: random.Random) -> None:
    """One engine, whose death gives up the evaluation; the next version is evaluated instead."""
    _ahead(shape, draw, (2, 4))
    shape.change(
        rollout={"actors": 1, "max_new_tokens": 20, "group_size": 2, "k_min": 1},
        task={"eval_size": 12},
        engine={"slots": 2},
        train={"batch_groups": 1, "steps": 6, "eval_every": draw.choice((0, 3))},
    )
    shape.kinds += ["kill_rollout", "engine_crashes"]


@theme
def storm(shape: Draft, draw: random.Random) -> None:
    """Verifiers that fail in every way, beside engines that do."""
    shape.kinds += [
        *("verifier_hangs", "verifier_raises", "verifier_times_out", "verifier_not_finite"),
        *("verifier_changed", "verifier_dies", "verifier_slow"),
        *("engine_slow", "engine_crashes", "engine_dead", "garbage_nan", "abort_without_partials"),
    ]


@theme
def quiet(shape: Draft, draw: random.Random) -> None:
    """Minutes, or an hour, in which nothing happens but the clock."""
    shape.speeds.quiet, shape.speeds.quiet_s = 2, draw.choice((300.0, 300.0, 300.0, 3600.0))
    shape.change(supervision={"stall_s": 7200.0, "compute_s": 7200.0})


@theme
def given_up(shape: Draft, draw: random.Random) -> None:
    """Few verifiers, which are always behind, and rollouts that are given up where they are
    interrupted a second time."""
    _ahead(shape, draw, (4,))
    shape.speeds.verdict_s = draw.choice((0.05, 0.3, 1.2))
    shape.change(
        reward={"actors": 1, "concurrency": draw.choice((1, 2))},
        rollout={
            "mode": "batch",
            "overprovision": 3.0,
            "max_resumes": 1,
            "group_size": 2,
            "k_min": 1,
            "max_new_tokens": 20,
        },
        train={"unit": "rollout", "advantage": "first_k", "batch_groups": 1, "steps": 6},
        staleness={"depth": 0},
        engine={"slots": 2, "chunk_tokens": 2},
    )
    shape.kinds.append("verifier_times_out")


OF_AGENTS = [
    one_version,
    many_micro_batches,
    slow_trainer,
    tiny,
    impatient,
    lonely_engine,
    storm,
    quiet,
    given_up,
]
"""The themes that a run whose rollouts are episodes may have. The others are of the rewards of
verifiers, which agents give as well, of `finish_on = own`, and of the number of leases."""
