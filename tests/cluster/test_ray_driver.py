"""Checks of Ray's driver that need no Ray; with one: `runs/test_ray.py`."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.cluster.ray_driver import refuse_loopback
from asyncrl.config import Config, ConfigError, load
from asyncrl.config.cluster import agent_cores
from asyncrl.config.derived import derived


def config(*sets: str) -> Config:
    return load(None, ["cluster.kind=ray", "rollout.actors=5", "cluster.agents=2", *sets], {})


def node(address: str, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive}


def test_other_machines_are_not_sent_to_their_own_loopback() -> None:
    gone = node("10.0.0.3", alive=False)
    refuse_loopback(config(), [node("10.0.0.1"), gone], "10.0.0.1")
    with pytest.raises(ConfigError, match=r"nodes elsewhere \(10.0.0.2\): set cluster.host and "):
        refuse_loopback(config(), [node("10.0.0.1"), node("10.0.0.2"), gone], "10.0.0.1")
    apart = ["cluster.host=10.0.0.1", "publication.host=10.0.0.1"]
    refuse_loopback(config(*apart), [node("10.0.0.1"), node("10.0.0.2")], "10.0.0.1")


def test_an_agent_has_a_core_for_each_actor_or_what_is_set() -> None:
    assert agent_cores(config()) == 3
    assert agent_cores(config("cluster.agent_cores=8")) == 8
    rows = {row.name: row for row in derived(config(), 4)}
    assert rows["machines"].value == "2 join, of Ray, 3 cores each"
