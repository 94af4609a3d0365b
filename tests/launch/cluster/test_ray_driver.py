"""Checks of Ray's driver that need no Ray; with one: `runs/test_ray.py`."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.config import Config, ConfigError, load
from asyncrl.config.cluster import agent_cores
from asyncrl.config.derived import derived
from asyncrl.config.errors import BAD_INPUT
from asyncrl.launch.cluster.ray_driver import (
    SHORT_LIVES,
    SHORT_S,
    AgentLives,
    RayPart,
    ray_parts,
    refuse_loopback,
)


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


def test_machines_of_the_trainer_have_parts_of_their_own() -> None:
    more = "cluster.reward_agents=1", "reward.actors=4"
    trains = config("cluster.trainer_agents=2", "train.ranks=6", "train.device=cuda", *more)
    assert ray_parts(trains) == [
        *[RayPart("rollout", 3, 0)] * 2,
        *[RayPart("trainer", 2, 2)] * 2,
        RayPart("reward", 4, 0),
    ]
    rows = {row.name: row for row in derived(trains, 4)}
    assert rows["trainer machines"].value == "2 join"
    assert rows["trainer machines"].meaning == (
        "by Ray: of the trainer's 6 ranks 2 on each, with a GPU for each rank, and 2 here"
    )


def test_an_agent_is_given_up_after_short_lives_in_a_row_and_others_are_not() -> None:
    lives = AgentLives()
    assert SHORT_LIVES == 3
    assert lives.another(0, 1, SHORT_S) and lives.took_part(0)
    assert lives.another(0, 1, 1.0) and lives.another(1, 1, 1.0) and lives.another(0, 1, 2.0)
    assert not lives.another(0, 1, 3.0) and lives.took_part(0)
    assert lives.another(1, 1, 1.0), "short lives are counted for each by itself"
    assert not lives.another(1, 1, 1.0) and not lives.took_part(1)


def test_a_long_life_is_forgiven_the_short_ones_before_it() -> None:
    lives = AgentLives()
    assert lives.another(0, 1, 1.0) and lives.another(0, 1, 1.0) and lives.another(0, 143, 60.0)
    assert lives.another(0, 1, 1.0) and lives.another(0, 1, 1.0)


def test_an_agent_whose_machine_is_refused_is_not_started_again() -> None:
    lives = AgentLives()
    assert not lives.another(0, BAD_INPUT, 1.0) and not lives.took_part(0)
    assert not lives.another(1, BAD_INPUT, 60.0) and lives.took_part(1)
