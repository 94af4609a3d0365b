"""Settings of simulated runs, drawn by a seed: those of any run, and what some runs have beside."""

from __future__ import annotations

import math
import random
from typing import Any

from asyncrl.simulation.coin_rule import COIN

AHEAD = ((0, 0), (0, 0), (1, 0), (1, 1), (2, 1), (4, 2))
"""Pairs of max_lag and depth."""
Settings = dict[str, dict[str, Any]]


def drawn_settings(seed: int) -> Settings:
    draw = random.Random(f"config/{seed}")
    max_lag, depth = draw.choice(AHEAD)
    unit = draw.choice(("group", "group", "rollout"))
    batch_groups, group_size = draw.choice((1, 2, 3)), draw.choice((2, 3)) + (unit == "rollout")
    exact = not max_lag and draw.random() < 0.8  # nothing but the seed has a say in the weights
    overprovision = draw.choice((1.0, 1.0, 1.5, 2.0)) if max_lag else 1.0
    # of the order of admission, for as many groups as max_lag allows
    free = max_lag and draw.random() < 0.5
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
    _evaluate(settings, seed)
    if random.Random(f"passes/{seed}").random() < 0.25:
        settings["train"]["passes"] = 2  # so micro-batches wait until their step is closed
    _mix(settings, seed)
    if settings["train"]["step_tokens"] and window and settings["staleness"]["on_stale"] == "drop":
        # such a step may be so small that no window bounds lag
        settings["staleness"]["on_stale"] = "mask"
    return settings


def _evaluate(settings: Settings, seed: int) -> None:
    """Have some of the runs evaluate by samples, and wait for that in one of two ways."""
    sampling = random.Random(f"evaluation/{seed}")
    if settings["task"]["eval_size"] and (samples := sampling.choice((0, 1, 2, 4))):
        settings["evaluation"] = {
            "samples": samples,
            "temperature": sampling.choice((0.6, 1.0)),
            "pass_at": sampling.sample(range(1, samples + 1), sampling.randint(0, samples)),
        }
    hold_s = random.Random(f"hold/{seed}").choice((2.0, 300.0))
    settings["evaluation"] = settings.get("evaluation", {}) | {"hold_s": hold_s}


def _mix(settings: Settings, seed: int) -> None:
    """Have a quarter of the runs train several tasks."""
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


_OF_ALL = (
    _evaluate_averages,
    _publish_directly,
    _lend,
    _choose_members,
    _judge_groups,
    _vary_sizes,
)
OF_EPISODES = (*_OF_ALL, _credit_branches)
"""Changes of the settings that some of the runs have whose rollouts are episodes."""
OF_TURNS = (*_OF_ALL, _prune, _import, _fork)
"""Those that some of the others have."""
