"""What a configuration may say and hardly means. Invariant: nothing is refused here, and the
defaults give no advice.

Each piece names the setting that does nothing, or that leaves something unbounded, and what would
help. It is printed with what follows from the configuration, before a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from asyncrl.config.engines import capabilities
from asyncrl.config.fields import lookup
from asyncrl.config.losses import bounded_above, clips_nothing
from asyncrl.config.schema import Config
from staleness.estimators import AgeDecay

GSPO_BOUND = 0.01
"""A geometric mean over a rollout is rarely further from 1 than this; the authors of GSPO clip at
3e-4 and 4e-4."""
WITHOUT_LOWER_BOUND = ("cispo", "topr", "reinforce", "one_forward")
WITHOUT_UPPER_BOUND = ("topr", "reinforce", "one_forward")


class Advice(NamedTuple):
    """`key`: a setting. `text`: the end of a sentence that begins with it."""

    key: str
    text: str


def advice(config: Config) -> Iterator[Advice]:
    """All there is to say, in no order that matters."""
    yield from _idle(config)
    yield from _loss(config)
    train, staleness = config.train, config.staleness
    if staleness.max_lag == 0 and staleness.on_stale != "train":
        if train.replay_groups:
            yield Advice(
                "train.replay_groups",
                "does nothing at max_lag 0: what was trained once is older by the next step",
            )
        if any(isinstance(entry, AgeDecay) for entry in staleness.correction):
            yield Advice(
                "staleness.correction",
                "has age_decay, which does nothing at max_lag 0: no token that is trained has an "
                "age",
            )


def _idle(config: Config) -> Iterator[Advice]:
    """Settings of what is not chosen."""
    task, rollout, train = config.task, config.rollout, config.train
    servers = "engine.sglang" in capabilities(config.engine.kind).tables
    unused = {
        "train.dual_clip": train.objective != "dual_clip" and "train.objective is not dual_clip",
        "train.prior_visits": train.advantage != "first_k" and "train.advantage is not first_k",
        "train.clip_lo": train.objective in WITHOUT_LOWER_BOUND
        and f"{train.objective} has no such bound",
        "train.clip_hi": train.objective in WITHOUT_UPPER_BOUND
        and f"{train.objective} has no such bound",
        "rollout.group_size_max": rollout.sizing != "difficulty"
        and "rollout.sizing is not difficulty",
        "rollout.accept_floor": rollout.filter == "none" and "rollout.filter is none",
        "engine.sglang.launch": not servers and "engine.kind is not sglang",
        "engine.sglang.urls": not servers and "engine.kind is not sglang",
        "task.verifier": task.name != "jsonl" and "only lines of jsonl name verifiers",
    }
    for key, why in unused.items():
        if why and lookup(config, key) != lookup(Config(), key):
            yield Advice(key, f"does nothing: {why}")


def _loss(config: Config) -> Iterator[Advice]:
    task, train, staleness = config.task, config.train, config.staleness
    if train.advantage == "gdpo" and (task.name != "jsonl" or ":" not in task.verifier):
        yield Advice(
            "train.advantage",
            "is gdpo, and this task's verifier gives one reward: there are no others to compare "
            "by themselves",
        )
    elif train.advantage == "gdpo" and config.rollout.filter == "zero_variance":
        yield Advice(
            "rollout.filter",
            "is zero_variance, which looks at sums: groups whose rewards differ and whose sums "
            "do not are left out",
        )
    nothing = clips_nothing(train, staleness)
    if train.objective == "gspo" and not nothing and min(train.clip_lo, train.clip_hi) > GSPO_BOUND:
        yield Advice(
            "train.objective",
            "is gspo, whose ratio is a mean over the rollout, and hardly ever leaves "
            f"[{1 - train.clip_lo:g}, {1 + train.clip_hi:g}]: "
            "its authors have clip_lo = 3e-4 and clip_hi = 4e-4",
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
    weighed = any(entry.measures for entry in staleness.correction)
    if (
        train.objective == "reinforce"
        and not weighed
        and (staleness.max_lag > 0 or staleness.on_stale == "train")
    ):
        yield Advice(
            "train.objective",
            "is reinforce, and no correction weighs by the ratio: old tokens count as if they "
            "were new; token_tis would",
        )
    if (
        train.objective == "clip"
        and staleness.proximal == "behaviour"
        and not bounded_above(staleness)
    ):
        yield Advice(
            "staleness.correction",
            "bounds no ratio, and objective clip does not where the advantage is negative: "
            "icepop or objective dual_clip would",
        )
