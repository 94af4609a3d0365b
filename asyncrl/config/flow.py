"""What the settings of flow say about each other. Invariant: what passes here starts nothing that
can never be trained, and a window that passes keeps the bound that it is set for.

Every rule names the keys that contradict each other and what to do about it, as
`rules.contradictions` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from asyncrl.config.schema import Config
from staleness.admission import max_live

FACTOR = 4
"""For one group that is needed at most so many are started, however few pass the filter."""
Contradictions = Iterator[tuple[tuple[str, ...], str]]


def flow_contradictions(config: Config) -> Contradictions:
    """Those of depth, window, lag, over-provisioning, group sizes and filters."""
    rollout, train, staleness = config.rollout, config.train, config.staleness
    bounded = staleness.on_stale != "train"
    if staleness.depth > staleness.max_lag and bounded:
        yield (
            ("staleness.depth", "staleness.max_lag"),
            "generation that far ahead is too old before it is trained: lower depth to max_lag, "
            "raise max_lag, or set on_stale to train",
        )
    elif (
        staleness.on_stale == "drop"
        and staleness.window
        and (lag := largest_lag(config, _live(config))) > staleness.max_lag
    ):
        widest = _widest(config)
        remedy = f"set window to {widest} or less" if widest else "lower depth or overprovision"
        yield (
            ("staleness.window", "staleness.max_lag", "staleness.on_stale"),
            f"a group may wait behind so many others that its lag is {lag}, and would be "
            f"dropped: {remedy}, or set max_lag to {lag}",
        )
    if staleness.max_lag == 0 and bounded and rollout.overprovision > 1:
        yield (
            ("rollout.overprovision", "staleness.max_lag"),
            "what a step does not need would be too old for the next: set overprovision to 1, or "
            "raise max_lag",
        )
    if staleness.max_lag == 0 and bounded and train.step_tokens:
        yield (
            ("train.step_tokens", "staleness.max_lag"),
            "what a step does not need would be too old for the next: set step_tokens to 0, or "
            "raise max_lag",
        )
    if train.unit == "rollout" and rollout.sizing == "difficulty":
        yield (
            ("train.unit", "rollout.sizing"),
            "what may be live is counted in groups of group_size, so lag would leave its bound "
            "with larger ones: set unit to group, "
            "or sizing to fixed",
        )
    if train.unit == "rollout" and staleness.on_stale == "restart":
        yield (
            ("train.unit", "staleness.on_stale"),
            "a prompt cannot start again while rollouts of it are trained: set unit to group, or "
            "on_stale to mask or drop",
        )
    if rollout.sizing == "difficulty" and rollout.group_size_max < rollout.group_size:
        yield (
            ("rollout.group_size_max", "rollout.group_size"),
            "hard prompts would get fewer rollouts than others: raise group_size_max",
        )


def _widest(config: Config) -> int:
    """The widest window that keeps lag within max_lag; 0 where none does."""
    return max(
        0, math.floor((config.staleness.max_lag + 1) * smallest_step(config)) - _live(config) + 1
    )


def largest_lag(config: Config, live: int) -> int:
    """Of any token, in versions, with the window that is set and so many groups live: as
    `staleness.admission.worst_lag`, whatever closes a step."""
    least = smallest_step(config)
    return 0 if least >= live else math.ceil((live + config.staleness.window - 1) / least) - 1


def _live(config: Config) -> int:
    return max_live(config.staleness.depth, config.train.batch_groups, config.rollout.overprovision)


def smallest_step(config: Config) -> Fraction:
    """Groups' worth of the smallest step: where tokens close it, of the longest rollouts there can
    be."""
    rollout, train = config.rollout, config.train
    if not train.step_tokens:
        return Fraction(train.batch_groups)
    if train.unit == "rollout":
        return Fraction(math.ceil(train.step_tokens / rollout.max_new_tokens), rollout.group_size)
    members = rollout.group_size if rollout.sizing == "fixed" else rollout.group_size_max
    return Fraction(math.ceil(train.step_tokens / (members * rollout.max_new_tokens)))
