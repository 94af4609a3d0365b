"""Advice about valid settings that are probably not intended. Invariant: nothing is refused here,
and the defaults give no advice.

Each piece names a setting that has no effect, or that leaves something unbounded, and a remedy. It
is printed with the derived table, before a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from asyncrl.config.engines import capabilities
from asyncrl.config.fields import lookup
from asyncrl.config.losses import (
    advantage_of,
    bounded_above,
    clips_nothing,
    drops_equal,
    objective_of,
)
from asyncrl.config.mix import each
from asyncrl.config.schema import Config
from asyncrl.config.schema.engine_section import SERVER_TABLES

GSPO_BOUND = 0.01
"""A geometric mean over a rollout is rarely further from 1 than this; the authors of GSPO clip at
3e-4 and 4e-4."""


class Advice(NamedTuple):
    """`key`: a setting. `text`: the end of a sentence that begins with it."""

    key: str
    text: str


def advice(config: Config) -> Iterator[Advice]:
    """All pieces of advice, in no particular order."""
    yield from _idle(config)
    yield from _loss(config)
    train, staleness = config.train, config.staleness
    if staleness.max_lag == 0 and staleness.on_stale != "train":
        if train.replay_groups:
            yield Advice(
                "train.replay_groups",
                "does nothing at max_lag 0: trained groups are older by the next step",
            )
        for entry in staleness.correction:
            if entry.reads == {"lag"}:
                yield Advice(
                    "staleness.correction",
                    f"has {entry.kind}, which does nothing at max_lag 0: no trained token has a "
                    "lag",
                )


def _idle(config: Config) -> Iterator[Advice]:
    """Settings of options that are not chosen."""
    rollout, train = config.rollout, config.train
    tables = capabilities(config.engine.kind).tables
    bounds = objective_of(train).settings
    unused = {
        "train.dual_clip": "dual_clip" not in bounds and "train.objective is not dual_clip",
        "train.prior_visits": "prior_visits" not in advantage_of(train).settings
        and "train.advantage is not first_k",
        "train.clip_lo": "clip_lo" not in bounds and f"{train.objective} has no such bound",
        "train.clip_hi": "clip_hi" not in bounds and f"{train.objective} has no such bound",
        "rollout.group_size_max": rollout.sizing == "fixed" and "rollout.sizing is fixed",
        "rollout.prune_after": rollout.prune == "none" and "rollout.prune is none",
        "rollout.prune_share": rollout.prune == "none" and "rollout.prune is none",
        "rollout.fork_after": rollout.fork == "off" and "rollout.fork is off",
        "rollout.fork_leaves": rollout.fork == "off" and "rollout.fork is off",
        "model.output_dtype": config.model.dtype == "float32" and "the weights are float32",
        "model.lora.alpha": not config.model.lora.rank and "model.lora.rank is 0",
        "model.lora.served": not config.model.lora.rank and "model.lora.rank is 0",
        "model.lora.targets": not config.model.lora.rank and "model.lora.rank is 0",
        "publication.dtype": config.publication.dtype == "bfloat16"
        and config.model.dtype == "bfloat16"
        and "the weights are bfloat16 anyhow",
        "rollout.accept_floor": rollout.filter == "none" and "rollout.filter is none",
    } | {
        f"{table}.{name}": table not in tables
        and f"engine.kind is not {table.removeprefix('engine.')}"
        for table in SERVER_TABLES
        for name in ("launch", "urls")
    }
    if config.publication.dtype == "fp8" and config.model.rounding != "fp8":
        yield Advice(
            "publication.dtype",
            "is fp8, and the trainer computes with other weights than engines: "
            "model.rounding = fp8 rounds both alike",
        )
    for key, why in unused.items():
        if why and lookup(config, key) != lookup(Config(), key):
            yield Advice(key, f"does nothing: {why}")


def _loss(config: Config) -> Iterator[Advice]:
    task, train, staleness = config.task, config.train, config.staleness
    objective, several = objective_of(train), advantage_of(train).several_rewards
    own = any(":" in one.name or (one.reads_data and ":" in one.verifier) for one in each(task))
    if several and not own:
        yield Advice(
            "train.advantage",
            f"is {train.advantage}, and this task's verifier gives one reward: there are no others "
            "to compare one by one",
        )
    elif several and drops_equal(config):
        yield Advice(
            "rollout.filter",
            "is zero_variance, which compares sums: groups whose rewards differ but whose sums do "
            "not are left out",
        )
    if config.rollout.filter == "zero_variance" and not drops_equal(config):
        yield Advice(
            "rollout.filter",
            f"is zero_variance, but drops nothing: with {train.advantage} a group whose rewards "
            "are all equal differs from the rest of its step",
        )
    nothing = clips_nothing(train, staleness)
    if (
        objective.ratio == "rollout_mean"
        and not nothing
        and min(train.clip_lo, train.clip_hi) > GSPO_BOUND
    ):
        yield Advice(
            "train.objective",
            f"is {train.objective}, whose ratio is a mean over the rollout, which hardly ever "
            "leaves "
            f"[{1 - train.clip_lo:g}, {1 + train.clip_hi:g}]: "
            "the authors of gspo have clip_lo = 3e-4 and clip_hi = 4e-4",
        )
    if (
        staleness.max_lag == 0
        and staleness.on_stale != "train"
        and staleness.proximal in ("boundary", "snapshot")
    ):
        yield Advice(
            "staleness.proximal",
            f"is {staleness.proximal}, and at max_lag 0 that is the policy of the step itself: "
            "it costs memory, and clips nothing",
        )
    weighed = any(entry.weighs_by_ratio for entry in staleness.correction)
    if (
        objective.ratio == "none"
        and not weighed
        and (staleness.max_lag > 0 or staleness.on_stale == "train")
    ):
        yield Advice(
            "train.objective",
            f"is {train.objective}, but no correction weighs by the ratio: old tokens count as if "
            "they were new; token_tis would",
        )
    if (
        objective.ratio == "token"
        and objective.bounded == "positive"
        and staleness.proximal == "behaviour"
        and not bounded_above(staleness)
    ):
        yield Advice(
            "staleness.correction",
            f"bounds no ratio, and objective {train.objective} does not where the advantage is "
            "negative: icepop or objective dual_clip would",
        )
