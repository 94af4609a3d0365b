"""Shapes of simulated runs: what a seed draws of settings, surroundings and faults.

Every other seed has a theme: a run at one of the edges of what settings allow, or among one kind of
trouble. Invariant: a shape is a function of the seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from asyncrl.config import Config
from asyncrl.simulation.coin_rule import COIN
from asyncrl.simulation.fake_world import Speeds
from asyncrl.simulation.faults import crowded
from asyncrl.simulation.policy import Rewards

AHEAD = ((0, 0), (0, 0), (1, 0), (1, 1), (2, 1), (4, 2))
"""Pairs of max_lag and depth."""
PROMPT = 4
"""Tokens of the longest prompt."""


Settings = dict[str, dict[str, Any]]


def configured(seed: int) -> Config:
    """A small run, of settings that the seed draws, without a theme."""
    settings = _settings(seed)
    _evaluate_averages(settings, seed)
    _publish_directly(settings, seed)
    _lend(settings, seed)
    _choose_members(settings, seed)
    _judge_groups(settings, seed)
    _vary_sizes(settings, seed)
    _prune(settings, seed)
    _import(settings, seed)
    _fork(settings, seed)
    return msgspec.convert(settings, Config)


def _settings(seed: int) -> Settings:
    draw = random.Random(f"config/{seed}")
    max_lag, depth = draw.choice(AHEAD)
    unit = draw.choice(("group", "group", "rollout"))
    batch_groups, group_size = draw.choice((1, 2, 3)), draw.choice((2, 3)) + (unit == "rollout")
    exact = not max_lag and draw.random() < 0.8  # nothing but the seed has a say in the weights
    overprovision = draw.choice((1.0, 1.0, 1.5, 2.0)) if max_lag else 1.0
    free = (
        max_lag and draw.random() < 0.5
    )  # of the order of admission, for as many groups as max_lag allows
    filtered = draw.choice(("none", "none", "zero_variance"))
    more = random.Random(f"more/{seed}")
    cut = random.Random(f"truncated/{seed}")
    most = depth * batch_groups + math.ceil(overprovision * batch_groups)
    window = max(0, (max_lag + 1) * batch_groups - most + 1) if free else 0
    settings: Settings = {
        "task": {
            "eval_size": draw.choice((0, 3)),
            "train_size": draw.choice((7, 1000)),
            "epochs": more.choice((0, 0, 1)),
            "verdict_s": 2.0,
            "curriculum": "in_order"
            if exact
            else draw.choice(("in_order", "in_order", "unsolved", "difficulty")),
        },
        "engine": {
            "kind": "scripted",
            "slots": draw.choice((2, 4, 8)),
            "chunk_tokens": draw.choice((2, 4)),
            "context_tokens": 64,
        },
        "rollout": {
            "actors": draw.choice((1, 2, 3)),
            "group_size": group_size,
            "group_size_max": group_size + draw.choice((0, 2)),
            "sizing": "fixed"
            if exact or unit == "rollout"
            else draw.choice(("fixed", "fixed", "difficulty")),
            "k_min": draw.choice((1, 2)) if unit == "rollout" else draw.choice((1, 2, 2)),
            "max_new_tokens": draw.choice((8, 20)),
            "truncated": cut.choice(("keep",) * 4 + ("mask", "penalize")),
            "overlong_band": cut.choice((0, 2, 5)),
            "filter": "none" if exact and more.random() < 0.7 else filtered,
            "mode": draw.choice(("in_flight", "in_flight", "batch")),
            "overprovision": overprovision,
            "max_resumes": 0 if exact else draw.choice((0, 0, 0, 1, 3)),
            "attempts": draw.choice((3, 20)),
            "temperature": more.choice((1.0, 0.5)),
            "lease_s": 8.0,
        },
        "train": {
            "steps": draw.choice((4, 6)),
            "batch_groups": batch_groups,
            "step_tokens": draw.choice((0, 0, 0, 10, 40)) if max_lag else 0,
            "unit": unit,
            "advantage": "first_k"
            if unit == "rollout"
            else draw.choice(("grpo", "grpo", "reinforce_pp")),
            "replay_groups": draw.choice((0, 0, 0, 1)) if unit == "group" and not exact else 0,
            "eval_every": 2,
            "checkpoint_every": draw.choice((1, 2, 2, 0)),
            "micro_tokens": draw.choice((64, 128)),
        },
        "staleness": {
            "max_lag": max_lag,
            "depth": depth,
            "window": window,
            "proximal": draw.choice(("behaviour", "behaviour", "boundary")),
            "finish_on": "own" if unit == "group" and more.random() < 0.2 else "mixed",
            "on_stale": draw.choice(("mask", "drop", "train") + ("restart",) * (unit == "group")),
        },
        "publication": {"deadline_s": 4.0},
        "reward": {"actors": draw.choice((1, 2)), "concurrency": 4},
        "journal": {"commit_ms": draw.choice((0, 20, 100, 500))},
        "supervision": {"stall_s": 60.0, "restarts": 20},
        "run": {"seed": seed},
    }
    sampling = random.Random(f"evaluation/{seed}")
    if settings["task"]["eval_size"] and (samples := sampling.choice((0, 1, 2, 4))):
        settings["evaluation"] = {
            "samples": samples,
            "temperature": sampling.choice((0.6, 1.0)),
            "pass_at": sampling.sample(range(1, samples + 1), sampling.randint(0, samples)),
        }
    hold_s = random.Random(f"hold/{seed}").choice((2.0, 300.0))
    settings["evaluation"] = settings.get("evaluation", {}) | {"hold_s": hold_s}
    if random.Random(f"passes/{seed}").random() < 0.25:
        settings["train"]["passes"] = 2  # so micro-batches wait until their step is closed
    mixing = random.Random(f"mix/{seed}")
    if mixing.random() < 0.25:
        share = mixing.choice((0.25, 0.5, 1.0))
        settings["task"] |= {
            "mix": {
                "one": {"train_size": mixing.choice((7, 300))},
                "other": {"eval_size": mixing.choice((0, 2))},
                "third": {"eval_size": 2 if settings["task"]["eval_size"] else 0},
            },
            "weights": {"one": [share, 0.5], "other": [1 - share, 0.5]},
            "stages": [mixing.choice((2, 5, 9))],
        }
    if settings["train"]["step_tokens"] and window and settings["staleness"]["on_stale"] == "drop":
        settings["staleness"]["on_stale"] = (
            "mask"  # such a step may be so small that no window bounds lag
        )
    return settings


# ---------------------------------------------------------------------------------------- themes


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
class _Draft:
    """A shape that is being drawn."""

    settings: Settings
    speeds: Speeds
    rewards: Rewards = field(default_factory=Rewards)
    kinds: list[str] = field(default_factory=list)

    def change(self, **sections: dict[str, Any]) -> None:
        """Change these settings, section by section."""
        for name, values in sections.items():
            self.settings[name] |= values


Theme = Callable[[_Draft, random.Random], None]
THEMES: list[Theme] = []


def theme(function: Theme) -> Theme:
    """Register a theme."""
    THEMES.append(function)
    return function


def _ahead(shape: _Draft, draw: random.Random, lags: tuple[int, ...] = (1, 2, 4)) -> None:
    """Let whole groups be trained some versions after they were sampled."""
    lag = draw.choice(lags)
    shape.change(
        train={"unit": "group", "advantage": "grpo", "step_tokens": 0, "replay_groups": 0},
        staleness={"max_lag": lag, "depth": 1, "window": 0, "on_stale": "mask"},
        task={"curriculum": "in_order", "epochs": 0, "train_size": 1000},
        rollout={"sizing": "fixed", "overprovision": 1.0, "filter": "none", "max_resumes": 0},
    )


@theme
def one_version(shape: _Draft, draw: random.Random) -> None:
    """Engines that hold one version, as servers do."""
    shape.change(
        engine={"kind": "sglang", "sglang": {"launch": ["none, as engines are fakes"]}},
        staleness={"finish_on": "mixed"},
        task={"eval_size": 5},
        rollout={"max_new_tokens": 20},
    )


@theme
def adaptive_leases(shape: _Draft, draw: random.Random) -> None:
    """So many leases, and such long ones, that their deadlines follow from how long they take."""
    _ahead(shape, draw, (2,))
    shape.change(
        rollout={"lease_s": 120.0, "group_size": 4, "k_min": 2, "max_new_tokens": 8},
        train={"batch_groups": 6, "steps": 6},
        engine={"slots": 4, "chunk_tokens": 4},
    )
    shape.kinds += ["engine_slow", "stop_rollout"]


@theme
def many_micro_batches(shape: _Draft, draw: random.Random) -> None:
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
def slow_trainer(shape: _Draft, draw: random.Random) -> None:
    """Steps and checkpoints that take longer than a publication's deadline."""
    shape.speeds.step_s, shape.speeds.save_s = 12.0, 25.0
    shape.change(train={"checkpoint_every": 1})


@theme
def tiny(shape: _Draft, draw: random.Random) -> None:
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
def hopeless(shape: _Draft, draw: random.Random) -> None:
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
def impatient(shape: _Draft, draw: random.Random) -> None:
    """A filter that leaves out many groups, and not many in a row."""
    _ahead(shape, draw)
    shape.change(
        rollout={"filter": "zero_variance", "filter_patience": 5, "group_size": 2, "k_min": 2},
        train={"batch_groups": 3, "steps": 6},
    )


@theme
def several_rewards(shape: _Draft, draw: random.Random) -> None:
    """Rewards of several parts, and prompts that come a second time."""
    shape.rewards = Rewards(parts=2)
    unit = shape.settings["train"]["unit"]
    shape.change(
        train={"advantage": "gdpo" if unit == "group" else "first_k"},
        task={"epochs": 2, "train_size": 7},
    )
    shape.kinds += ["verifier_changed", "garbage_vocabulary"]


@theme
def own_version(shape: _Draft, draw: random.Random) -> None:
    """Rollouts that end under the version they began with, while everything crashes."""
    _ahead(shape, draw)
    shape.change(staleness={"finish_on": "own"}, rollout={"max_new_tokens": 20})
    shape.speeds.step_s = 0.02
    shape.kinds += ["kill_rollout", "engine_crashes", "kill_everything", "abort_with_partials"]


@theme
def lonely_engine(shape: _Draft, draw: random.Random) -> None:
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
def storm(shape: _Draft, draw: random.Random) -> None:
    """Verifiers that fail in every way, beside engines that do."""
    shape.kinds += [
        *("verifier_hangs", "verifier_raises", "verifier_times_out", "verifier_not_finite"),
        *("verifier_changed", "verifier_dies", "verifier_slow"),
        *("engine_slow", "engine_crashes", "engine_dead", "garbage_nan", "abort_without_partials"),
    ]


@theme
def quiet(shape: _Draft, draw: random.Random) -> None:
    """Minutes, or an hour, in which nothing happens but the clock."""
    shape.speeds.quiet, shape.speeds.quiet_s = 2, draw.choice((300.0, 300.0, 300.0, 3600.0))
    shape.change(supervision={"stall_s": 7200.0, "compute_s": 7200.0})


@theme
def given_up(shape: _Draft, draw: random.Random) -> None:
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


def _evaluate_averages(settings: Settings, seed: int) -> None:
    """Have half of the runs that may do so evaluate the average of the weights."""
    draw = random.Random(f"average/{seed}")
    may = settings["staleness"]["finish_on"] == "mixed" and settings["task"]["eval_size"]
    if draw.random() < 0.5 and may and settings["engine"]["kind"] == "scripted":
        settings["train"]["ema"] = 0.9
        settings["evaluation"] = settings.get("evaluation", {}) | {"weights": "ema"}


def _publish_directly(settings: Settings, seed: int) -> None:
    """Have a fifth of the runs that may do so publish straight into engines' weights."""
    averages = settings.get("evaluation", {}).get("weights") == "ema"
    may = settings["engine"]["kind"] == "scripted" and not averages
    if may and random.Random(f"direct/{seed}").random() < 0.2:
        settings["publication"]["path"] = "direct"


def _lend(settings: Settings, seed: int) -> None:
    """Have a quarter of the runs that may do so lend the trainer's devices to some engines."""
    draw, actors = random.Random(f"lending/{seed}"), settings["rollout"]["actors"]
    if draw.random() < 0.25 and actors > 1 and settings["staleness"]["finish_on"] == "mixed":
        settings["rollout"] |= {"lent_actors": draw.randrange(1, actors), "lending": "switch"}


def _choose_members(settings: Settings, seed: int) -> None:
    """Have a quarter of the runs that may do so train some members of larger groups."""
    draw, rollout, train = random.Random(f"keep/{seed}"), settings["rollout"], settings["train"]
    if draw.random() < 0.25 and train["unit"] == "group":
        grown = max(0, 4 - rollout["group_size"])
        rollout["group_size"] += grown
        rollout["group_size_max"] += grown
        train["keep"] = draw.choice(("roc", "roc", "top_bottom", "top", "bottom"))
        train["keep_members"] = draw.choice((0, 0, 2, 3))


def _judge_groups(settings: Settings, seed: int) -> None:
    """Have a fifth of the runs that may do so judge the answers of a group together."""
    may = settings["train"]["unit"] == "group"
    if may and random.Random(f"judged groups/{seed}").random() < 0.2:
        settings["task"] |= {"name": "data", "path": "rows.jsonl", "verifier": "judge"}
        settings["judge"] = {"url": "http://127.0.0.1:1/v1", "model": "m", "members": "scored"}


def _vary_sizes(settings: Settings, seed: int) -> None:
    """Have a third of the runs of several engines that may do so have groups that grow, or of other
    sizes: there members end in any order."""
    draw, rollout = random.Random(f"grown/{seed}"), settings["rollout"]
    may = settings["train"]["unit"] == "group" and rollout["actors"] > 1
    if draw.random() < 0.3 and may:
        rollout["sizing"] = draw.choice(("dars", "dars_hard", "v05", "xrpo", "gdro", "dart"))
        rollout["group_size_max"] = rollout["group_size"] + draw.choice((1, 2, 4))


def _prune(settings: Settings, seed: int) -> None:
    """Have a seventh of the runs have a rule that ends rollouts."""
    draw, rollout = random.Random(f"asked members/{seed}"), settings["rollout"]
    most = rollout["max_new_tokens"]
    if draw.random() < 0.15 and most > 4:
        rollout["prune"] = draw.choice(("unlikely", COIN, "balance", "converged", "longest"))
        rollout["prune_after"] = draw.choice((2, 4))
        settings["train"]["steps"] = 8  # so there is something to predict from
        if rollout["prune"] == "longest" and "mix" not in settings["task"]:
            settings["task"] |= {"train_size": 3, "epochs": 0}
        rollout["prune_share"] = 0.99 if rollout["prune"] in ("converged", "unlikely") else 0.5
        train = settings["train"]
        if (
            rollout["prune"] in ("unlikely", COIN)
            and train["unit"] == "group"
            and draw.random() < 0.5
        ):
            rollout |= {"prune_weight": "inverse", "filter": "none"}
            train |= {"advantage": "rloo", "keep": "all", "keep_members": 0}
        rollout["group_size"] += rollout["group_size"] == rollout["k_min"]
        rollout["group_size_max"] = max(rollout["group_size_max"], rollout["group_size"])


def _fork(settings: Settings, seed: int) -> None:
    """Have half of the runs that may do so have rollouts that fork."""
    draw, rollout, train = random.Random(f"tree/{seed}"), settings["rollout"], settings["train"]
    may = train["unit"] == "group" and "foreign" not in settings and "prune" not in rollout
    may = may and rollout["sizing"] == "fixed" and rollout["truncated"] != "mask"
    may = may and settings["staleness"]["finish_on"] == "mixed" and not train["replay_groups"]
    may = may and train.get("keep", "all") == "all" and rollout["max_new_tokens"] > 4
    # such a run, as it is without forks, is the only one that shows one of the planted bugs
    may = may and (rollout["mode"], rollout["filter"]) != ("batch", "zero_variance")
    if draw.random() < 0.5 and may:
        leaves = draw.choice((2, 2, 3, 4))
        rollout |= {
            "fork": draw.choice(("depths", "surprise")),
            "fork_after": draw.choice((1, 2, 2, 3)),
            "fork_leaves": leaves,
            "group_size": leaves * draw.choice((2, 2, 3)),
            "k_min": min(2, rollout["k_min"]),
        }
        rollout["group_size_max"] = max(rollout["group_size_max"], rollout["group_size"])
        train["advantage"] = "rloo"


def _import(settings: Settings, seed: int) -> None:
    """Have a quarter of the runs that may do so take foreign answers in."""
    draw, rollout = random.Random(f"foreign/{seed}"), settings["rollout"]
    may = settings["train"]["unit"] == "group" and "judge" not in settings
    if draw.random() < 0.25 and may:
        settings["foreign"] = {
            "source": "file",
            "path": "answers.jsonl",
            "members": draw.randint(1, rollout["group_size"]),
            "max_age": draw.choice((0, 1, 3, 8)),
        }
        if draw.random() < 0.5 and "mix" not in settings["task"]:
            settings["foreign"] |= {"source": "pool", "path": ""}
            settings["task"] |= {"train_size": 3 * settings["train"]["batch_groups"], "epochs": 0}
        elif seed % 3 == 0:
            settings["foreign"]["source"] = "runs"
        settings["staleness"]["proximal"] = draw.choice(("behaviour", "recompute"))


def _credit_branches(settings: Settings, seed: int) -> None:
    """Have a quarter of the agents' runs that may do so credit a turn with what lies below it."""
    if (
        random.Random(f"fork siblings/{seed}").random() < 0.25
        and settings["train"]["unit"] == "group"
    ):
        settings["train"] |= {"credit": "below", "advantage": "rloo"}
        settings["rollout"]["filter"] = "none"


def drawn(seed: int) -> Shape:
    """The shape of a seed's run."""
    draft = _Draft(_settings(seed), speeds(seed))
    if seed % 2:
        THEMES[seed // 2 % len(THEMES)](draft, random.Random(f"theme/{seed}"))
    _evaluate_averages(draft.settings, seed)
    _publish_directly(draft.settings, seed)
    _lend(draft.settings, seed)
    _choose_members(draft.settings, seed)
    _judge_groups(draft.settings, seed)
    _vary_sizes(draft.settings, seed)
    _prune(draft.settings, seed)
    _import(draft.settings, seed)
    _fork(draft.settings, seed)
    rollout = draft.settings["rollout"]  # a theme may have made responses shorter than the band
    rollout["overlong_band"] = min(rollout.get("overlong_band", 0), rollout["max_new_tokens"])
    config = msgspec.convert(draft.settings, Config)
    # at lag 0 the weights are compared with those of a plain loop, which knows of no errors
    exact = config.staleness.max_lag == config.staleness.depth == 0
    if random.Random(f"errors/{seed}").random() < 0.25 and not exact:
        draft.rewards = draft.rewards._replace(errors=True)
    return Shape(config, draft.speeds, draft.rewards, draft.kinds)


def drawn_agents(seed: int) -> Shape:
    """The shape of a seed's run whose rollouts are episodes: settings, theme and speeds are those
    of its other run as far as there are such episodes, and the rest is drawn beside."""
    draft, draw = _Draft(_settings(seed), speeds(seed)), random.Random(f"agents/{seed}")
    if seed % 2:
        OF_AGENTS[seed // 2 % len(OF_AGENTS)](draft, random.Random(f"theme/{seed}"))
    settings, context = draft.settings, draft.settings["engine"]["context_tokens"]
    pace, late = draw.choice((0.02, 0.1, 0.5)), draw.choice((1.0, 1.0, 30.0))
    settings["agent"] = {
        "run": "scripted:agent",
        "actors": draw.choice((1, 2)),
        "concurrency": draw.choice((1, 2, 4)),
        "episode_s": late * pace * draw.choice((40.0, 200.0)),
    }
    evaluation = settings.get("evaluation", {})
    settings["evaluation"] = evaluation | {"hold_s": draw.choice((2.0, 300.0))}
    settings["agent"] |= {
        "max_calls": draw.choice((3, 8, 8)),
        "attempts": draw.choice((2, 3)),
        "mask_failed": draw.choice(((), ("search",), ("*",))),
    }
    budget = draw.choice((6, 16, 40))
    draft.change(
        rollout={
            "max_new_tokens": budget
            if budget + PROMPT <= context
            else settings["rollout"]["max_new_tokens"],
            "truncated": draw.choice(("keep", "mask")),
        },
        staleness={"finish_on": "mixed", "proximal": "behaviour"},
    )
    # each third agent may be so late that its episode grows old
    draft.speeds.think_s = lambda seed: (
        pace * draw.choice((0.2, 1.0, 1.0, 8.0)) * (1.0 if seed % 3 else late)
    )
    _evaluate_averages(settings, seed)
    _publish_directly(settings, seed)
    _lend(settings, seed)
    _choose_members(settings, seed)
    _judge_groups(settings, seed)
    _vary_sizes(settings, seed)
    _credit_branches(settings, seed)
    config = msgspec.convert(settings, Config)
    steady, errors = draw.random() < 0.6, draw.random() < 0.25
    rewards, cling = draft.rewards._replace(errors=errors), crowded(seed)
    steady &= not cling
    return Shape(config, draft.speeds, rewards, draft.kinds, steady=steady, cling=cling)


def speeds(seed: int) -> Speeds:
    """Seconds that things take in the run of a seed."""
    draw, saving = random.Random(f"speeds/{seed}"), random.Random(f"saving/{seed}")
    pace = draw.choice((0.01, 0.03, 0.06))
    return Speeds(
        pace=lambda: pace * draw.choice((0.5, 1.0, 1.0, 4.0)),
        start_s=lambda: draw.uniform(0.05, 0.6),
        step_s=draw.choice((0.02, 0.2, 0.5)),
        # some are written while several steps are made
        save_s=saving.choice((0.1, 0.1, 1.5, 6.0)),
        copy_s=saving.choice((0.01, 0.01, 2.0)),
    )
