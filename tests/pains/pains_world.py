"""Runs of the simulation with the faults that a test names."""

from __future__ import annotations

import msgspec

from asyncrl.config import Config
from asyncrl.simulation.faults import Fault
from asyncrl.simulation.run import Report, configured, simulate


def simulated(seed: int, *faults: Fault, **sections: dict[str, object]) -> Report:
    """A run of the simulation of which nothing but the settings not named here is left to the seed."""
    settings: dict[str, dict[str, object]] = {
        "task": {"eval_size": 3, "train_size": 1000},
        "engine": {"slots": 4, "chunk_tokens": 4},
        "rollout": {"actors": 2, "group_size": 3, "max_new_tokens": 20, "filter": "none", "attempts": 20},
        "train": {"steps": 6, "batch_groups": 2, "checkpoint_every": 2},
        "staleness": {"max_lag": 1, "depth": 1, "on_stale": "mask"},
        "run": {"reward_actors": 2, "journal_ms": 20},
    }
    raw = msgspec.to_builtins(configured(seed))
    for name in raw:
        raw[name] |= settings.get(name, {}) | sections.get(name, {})
    return simulate(seed, config=msgspec.convert(raw, Config), faults=faults)
