"""Flow of groups: the admission rule of the settings, and settings that contradict it.

Every contradiction names its keys and a remedy, as `rules.contradictions` does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from asyncrl.algorithms.overlong import overlong_band
from asyncrl.config.losses import credit_of, drops_equal
from asyncrl.config.schema import Config, RolloutConfig
from asyncrl.staleness.admission import (
    AdmissionPolicy,
    AdmissionSettings,
    Contradiction,
    choose_policy,
)


def max_lag(config: Config) -> int:
    """Largest lag of a token that enters a loss, in versions; `sys.maxsize` where any may."""
    return sys.maxsize if config.staleness.on_stale == "train" else config.staleness.max_lag


def max_group_size(config: Config) -> int:
    """Most rollouts of a prompt."""
    rollout = config.rollout
    return rollout.group_size if rollout.sizing == "fixed" else rollout.group_size_max


def fork_leaves(config: Config) -> int:
    """Rollouts that each of the first ones of a group may become; 1 where none forks."""
    return 1 if config.rollout.fork == "off" else config.rollout.fork_leaves


def penalty_band(rollout: RolloutConfig) -> int:
    """Tokens over which the penalty of a long response grows; 0 without a penalty."""
    if rollout.truncated != "penalize":
        return 0
    return overlong_band(rollout.overlong_band, rollout.max_new_tokens)


def admission_policy(config: Config) -> AdmissionPolicy:
    """Return the rule by which groups start, for these settings."""
    rollout, train, staleness = config.rollout, config.train, config.staleness
    return choose_policy(
        AdmissionSettings(
            depth=staleness.depth,
            batch_groups=train.batch_groups,
            overprovision=rollout.overprovision,
            window=staleness.window,
            max_lag=max_lag(config),
            on_stale=staleness.on_stale,
            filter="zero_variance" if drops_equal(config) else "none",
            signal=credit_of(train).signal,
            unit=train.unit,
            step_tokens=train.step_tokens,
            max_new_tokens=rollout.max_new_tokens,
            sizing=rollout.sizing,
            group_size=rollout.group_size,
            group_size_max=rollout.group_size_max,
        )
    )


def flow_contradictions(config: Config) -> Iterator[Contradiction]:
    """Contradictions of the admission rule: depth, window, lag, over-provisioning."""
    return admission_policy(config).contradictions()
