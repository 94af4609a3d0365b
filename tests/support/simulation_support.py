"""Settings of simulated runs. Invariant: what is not named here is the seed's."""

from __future__ import annotations

import msgspec

from asyncrl.config import Config
from asyncrl.simulation.shapes import configured


def plain(seed: int = 0, **sections: dict[str, object]) -> Config:
    """A run of which nothing is left to the seed."""
    settings: dict[str, dict[str, object]] = {
        "task": {"eval_size": 3, "train_size": 1000, "curriculum": "in_order", "epochs": 0},
        "engine": {"slots": 4, "chunk_tokens": 4},
        "rollout": {
            "actors": 2,
            "lent_actors": 0,
            "group_size": 3,
            "sizing": "fixed",
            "k_min": 2,
            "max_new_tokens": 20,
            "filter": "none",
            "mode": "in_flight",
            "overprovision": 1.0,
            "max_resumes": 0,
            "attempts": 20,
            "fork": "off",
        },
        "train": {
            "steps": 6,
            "batch_groups": 2,
            "step_tokens": 0,
            "unit": "group",
            "advantage": "grpo",
            "replay_groups": 0,
            "checkpoint_every": 2,
        },
        "staleness": {
            "max_lag": 1,
            "depth": 1,
            "window": 0,
            "proximal": "behaviour",
            "finish_on": "mixed",
            "on_stale": "mask",
        },
        "reward": {"actors": 2},
        "journal": {"commit_ms": 20},
    }
    config = configured(seed)
    for name in {**settings, **sections}:
        section = getattr(config, name)
        wanted = msgspec.to_builtins(section) | settings.get(name, {}) | sections.get(name, {})
        if name == "staleness":  # a list of corrections is no plain value: it stays as it is
            wanted["correction"] = ()
            changed = msgspec.convert(wanted, type(section))
            changed = msgspec.structs.replace(changed, correction=section.correction)
        else:
            changed = msgspec.convert(wanted, type(section))
        config = msgspec.structs.replace(config, **{name: changed})
    return config
