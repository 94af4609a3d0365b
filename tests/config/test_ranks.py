"""Ranks that follow from settings and GPUs, and what several of them refuse."""

from __future__ import annotations

from typing import Any

import pytest
from without_rules import without_rules

from asyncrl.config import Config
from asyncrl.config.cluster import ranks_here
from asyncrl.config.gpus import gpus_of, trainer_agent_gpus
from asyncrl.config.ranks import rank_contradictions, ranks_left, ranks_of, settled_ranks
from asyncrl.config.schema import LoraConfig, SglangConfig
from asyncrl.staleness.corrections import M2po


def config(**sections: dict[str, Any]) -> Config:
    with without_rules():
        return Config(**sections)  # type: ignore[arg-type]


def test_ranks_on_gpus_are_those_that_nobody_else_needs() -> None:
    cuda = config(train={"device": "cuda"})
    assert [settled_ranks(cuda, gpus) for gpus in (0, 1, 4)] == [1, 1, 4]
    assert settled_ranks(config(train={"device": "cuda", "ranks": 3}), 8) == 3
    assert settled_ranks(config(), 8) == ranks_of(Config().train) == 1
    assert gpus_of(config(train={"device": "cuda", "ranks": 3})).trainer == (0, 1, 2)


def test_a_run_goes_on_with_no_more_ranks_than_there_are_devices_for() -> None:
    servers = {"kind": "sglang", "sglang": SglangConfig(launch=("python3",), device="cuda")}
    cuda = config(train={"device": "cuda", "ranks": 4}, engine=servers, rollout={"actors": 2})
    assert gpus_of(cuda).needed == 6
    assert [ranks_left(cuda, 64, gpus) for gpus in (8, 6, 5, 4, 3, 2, 0)] == [4, 4, 3, 2, 1, 1, 1]
    cpu = config(train={"ranks": 4})
    assert [ranks_left(cpu, cores, 0) for cores in (8, 4, 3, 1)] == [4, 4, 3, 1]
    assert ranks_left(config(), 1, 0) == 1


def test_machines_of_the_trainer_have_as_many_ranks_each() -> None:
    elsewhere = {"kind": "agents", "trainer_agents": 2}
    servers = {"kind": "sglang", "sglang": SglangConfig(launch=("python3",), device="cuda")}
    cuda = config(train={"device": "cuda"}, cluster=elsewhere, engine=servers)
    assert [settled_ranks(cuda, gpus) for gpus in (0, 1, 8)] == [3, 3, 24]
    assert settled_ranks(config(cluster=elsewhere), 8) == 3
    whole = config(train={"device": "cuda", "ranks": 12}, cluster=elsewhere, engine=servers)
    assert ranks_here(whole) == 4 and gpus_of(whole).trainer == (0, 1, 2, 3)
    assert trainer_agent_gpus(whole) == 4 and trainer_agent_gpus(config(cluster=elsewhere)) == 0
    assert [ranks_left(whole, 64, gpus) for gpus in (8, 4, 3, 1)] == [4, 4, 3, 1]


@pytest.mark.parametrize(
    ("cluster", "ranks", "said"),
    [
        ({"trainer_agents": 1}, 2, "no machine joins a local run"),
        ({"kind": "agents", "trainer_agents": 1}, 3, "make ranks a multiple of 2"),
        ({"kind": "ray", "trainer_agents": 3}, 6, "make ranks a multiple of 4"),
        ({"kind": "agents", "trainer_agents": 1}, 4, None),
        ({"kind": "agents", "trainer_agents": 1}, 0, None),
    ],
)
def test_layouts_that_cannot_be_are_refused(
    cluster: dict[str, Any], ranks: int, said: str | None
) -> None:
    whole = config(cluster=cluster, train={"ranks": ranks})
    found = [
        remedy
        for keys, remedy in whole.cluster.contradictions(whole)
        if "cluster.trainer_agents" in keys
    ]
    assert found == [] if said is None else said in found[0]


@pytest.mark.parametrize(
    ("ranks", "replicas", "said"),
    [
        (4, 3, "set replicas to 2, or make ranks a multiple of 3"),
        (0, 2, "set replicas to 1"),
        (4, 2**31, "set replicas to 4"),
        (2**31 - 1, 2**30, "set replicas to 1"),
        (4, 2, ""),
    ],
)
@pytest.mark.parametrize("name", ["replicas", "context_ranks"])
def test_ranks_are_a_multiple_of_what_they_are_divided_into(
    ranks: int, replicas: int, said: str, name: str
) -> None:
    found = [
        remedy for _, remedy in rank_contradictions(config(train={"ranks": ranks, name: replicas}))
    ]
    said = said.replace("replicas", name)
    assert len(found) == bool(said) and all(said in remedy for remedy in found)
    cuda = config(train={"device": "cuda", name: 2})  # its ranks are not known yet
    assert not [*rank_contradictions(cuda)]


@pytest.mark.parametrize(("ranks", "least", "to"), [(4, 5, 4), (0, 2, 1), (4, 4, 0), (2, 0, 0)])
def test_a_run_goes_on_with_no_more_ranks_than_it_has(ranks: int, least: int, to: int) -> None:
    train = {"ranks": ranks, "min_ranks": least}
    found = [remedy for _, remedy in rank_contradictions(config(train=train))]
    assert len(found) == bool(to) and all(f"lower min_ranks to {to}," in each for each in found)
    cuda = config(train={"device": "cuda", "min_ranks": 2})  # its ranks are not known yet
    assert not [*rank_contradictions(cuda)]


FEATURES: list[dict[str, dict[str, Any]]] = [
    {"staleness": {"proximal": "boundary"}},
    {"staleness": {"correction": (M2po(),)}},
    {"train": {"advantage": "min_variance", "ema": 0.9}},
    {"model": {"lora": LoraConfig(rank=2)}},
    {"publication": {"dtype": "bfloat16"}},
    {"teacher": {"coefficient": 0.1, "path": "elsewhere"}},
    {"reference": {"coefficient": 0.1}},
    {"supervised": {"coefficient": 0.1, "path": "examples"}},
]


@pytest.mark.parametrize("sections", FEATURES)
def test_several_ranks_refuse_nothing_that_one_can(sections: dict[str, dict[str, Any]]) -> None:
    train = {"ranks": 2} | sections.get("train", {})
    assert not [*rank_contradictions(config(**{**sections, "train": train}))]


@pytest.mark.parametrize(
    ("key", "train", "sections"),
    [
        ("train.router_aux", {"ranks": 2, "router_aux": 0.01}, {}),
        ("reference.path", {}, {"reference": {"coefficient": 0.1, "path": "elsewhere"}}),
        ("teacher.path", {}, {"teacher": {"coefficient": 0.1, "path": "elsewhere"}}),
        ("supervised.coefficient", {}, {"supervised": {"coefficient": 0.1, "path": "examples"}}),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_their_number_is_known(
    key: str, train: dict[str, Any], sections: dict[str, Any]
) -> None:
    elsewhere = {} if train else {"cluster": {"kind": "agents", "trainer_agents": 1}}
    ((keys, remedy),) = rank_contradictions(config(**sections, **elsewhere, train=train))
    assert key in keys and remedy.endswith((" to 0", " to 1"))
    assert not [*rank_contradictions(config(**sections))]
