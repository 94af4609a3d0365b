"""A search for better settings of a run on as many devices. Invariant: nothing is recommended that
the rules between settings refuse, and each row that is compared was simulated alike.

The search goes setting by setting, each from the best so far: the share of the devices that
engines have, how far generation runs ahead, over-provisioning, the unit of training. Of candidates
that train tokens as fast as the fastest, up to `AS_FAST`, the one with the smallest mean lag is the
best: more lag must buy speed.

It is made on a `part` of the cluster, with a part of a step, and its result is run whole once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from asyncrl.config import Config, ConfigError
from asyncrl.sizing.cluster_models import ClusterModel
from asyncrl.sizing.forecast import Cluster, Forecast, forecast

AS_FAST = 0.02
"""Share of the speed that may be given up for less lag."""
ENGINES, GROUPS = 6, 12
"""Least engines of a part of a cluster, and least groups of a part of a step."""
SHARES = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the devices for engines."""
DEPTHS = (0, 1, 2, 3, 4)
OVERPROVISIONS = (1.0, 1.25, 1.5, 2.0)
UNITS = ("group", "rollout")


class SizingCandidate(msgspec.Struct, frozen=True):
    """A cluster, and settings of the run by section and name."""

    engines: int
    trainers: int
    settings: dict[str, Any] = {}

    def sets(self) -> list[str]:
        """The settings, as `--set` takes them."""
        return [f"{key}={value}" for key, value in self.settings.items()]


class Tried(msgspec.Struct, frozen=True):
    """A candidate and its forecast."""

    candidate: SizingCandidate
    forecast: Forecast


class Recommendation(msgspec.Struct, frozen=True):
    """The run as it is, and the recommended one, each whole; and all that were tried, at a `part`
    of the size."""

    given: Tried
    best: Tried
    tried: list[Tried]
    part: int


def with_settings(config: Config, settings: dict[str, Any]) -> Config:
    """The same settings but for these. Raises ConfigError if they contradict each other."""
    tree = {name: getattr(config, name) for name in config.__struct_fields__}
    for key, value in settings.items():
        section, name = key.split(".")
        tree[section] = msgspec.structs.replace(tree[section], **{name: value})
    return type(config)(**tree)


def part_of(config: Config, cluster: Cluster) -> int:
    """The divisor of a cluster for the search: 1 for all of it."""
    least = min(cluster.engines // ENGINES, config.train.batch_groups // GROUPS)
    return max(1, least)


def recommend(
    config: Config,
    models: ClusterModel,
    cluster: Cluster,
    hours: float,
    say: Callable[[str], object] = lambda text: None,
) -> Recommendation:
    """Search, and run the run as it is and the best candidate whole. `say` is called with each
    candidate. Raises ConfigError if the run as it is cannot be forecast."""
    part = part_of(config, cluster)
    present = SizingCandidate(cluster.engines, cluster.trainers)
    tried: dict[str, Tried] = {}

    def attempt(candidate: SizingCandidate, *, whole: bool = False) -> Tried:
        key = msgspec.json.encode((candidate, whole)).decode()
        if key not in tried:
            say(_named(candidate, whole))
            changed = with_settings(config, candidate.settings)
            size = Cluster(candidate.engines, candidate.trainers, cluster.price)
            result = forecast(changed, models, size, hours, part=None if whole else part)
            tried[key] = Tried(candidate, result)
        return tried[key]

    best = attempt(present)
    for choices in (_splits, _depths, _overprovisions, _units, _splits):
        candidates = [best]
        for candidate in choices(config, models, best.candidate):
            try:
                candidates.append(attempt(candidate))
            except ConfigError:  # settings that contradict each other, or too slow to be measured
                continue
        best = preferred(candidates)
    return Recommendation(
        given=attempt(present, whole=True),
        best=attempt(best.candidate, whole=True),
        tried=[entry for key, entry in tried.items() if key.endswith("false]")],
        part=part,
    )


def preferred(tried: list[Tried]) -> Tried:
    """Among those nearly as fast as the fastest, the one with the smallest lag; among equals the
    first."""
    fastest = max(entry.forecast.trained_per_s for entry in tried)
    fast = [entry for entry in tried if entry.forecast.trained_per_s >= (1 - AS_FAST) * fastest]
    return min(fast, key=lambda entry: round(entry.forecast.lag_mean, 2))


def _splits(
    config: Config, models: ClusterModel, best: SizingCandidate
) -> Iterator[SizingCandidate]:
    """Other shares of the same devices, or of fewer, as those of an engine stay together."""
    each = models.engine.devices
    devices = best.engines * each + best.trainers
    for share in SHARES:
        engines = max(1, round(share * devices / each))
        if (trainers := devices - engines * each) >= 1:
            yield msgspec.structs.replace(best, engines=engines, trainers=trainers)


def _depths(
    config: Config, models: ClusterModel, best: SizingCandidate
) -> Iterator[SizingCandidate]:
    for depth in DEPTHS:
        if depth <= config.staleness.max_lag:
            yield _changed(best, {"staleness.depth": depth})


def _overprovisions(
    config: Config, models: ClusterModel, best: SizingCandidate
) -> Iterator[SizingCandidate]:
    for more in OVERPROVISIONS:
        yield _changed(best, {"rollout.overprovision": more})


def _units(
    config: Config, models: ClusterModel, best: SizingCandidate
) -> Iterator[SizingCandidate]:
    for unit in UNITS:
        if unit != config.train.unit:
            alone: dict[str, Any] = (
                {"train.advantage": "first_k", "rollout.k_min": max(2, _half(config))}
                if unit == "rollout"
                else {}
            )
            yield _changed(best, {"train.unit": unit} | alone)


def _half(config: Config) -> int:
    return config.rollout.group_size // 2


def _changed(best: SizingCandidate, settings: dict[str, Any]) -> SizingCandidate:
    return msgspec.structs.replace(best, settings=best.settings | settings)


def _named(candidate: SizingCandidate, whole: bool) -> str:
    sets = " ".join(candidate.sets()) or "as it is"
    size = ", whole" if whole else ""
    return f"{candidate.engines} engines, {candidate.trainers} trainers, {sets}{size}"
