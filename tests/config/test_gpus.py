"""GPUs of one machine: who has which, said before anything starts."""

from __future__ import annotations

from itertools import product

import pytest

from asyncrl.config import Config, load
from asyncrl.config.derived import derived
from asyncrl.config.gpus import actor_gpus, gpus_of, visible
from asyncrl.config.ranks import settled_ranks

SERVERS = (
    "engine.kind=sglang",
    'engine.sglang.launch=["python3"]',
    "engine.sglang.device=cuda",
    "model.dtype=bfloat16",
)


def config(*sets: str) -> Config:
    return load(None, sets, {})


def test_nobody_needs_one_unless_it_is_asked_for() -> None:
    assert gpus_of(config()) == ((), (), ())
    assert not [row for row in derived(config(), 2) if row.name == "GPUs"]


def test_trainer_servers_and_senders_have_their_own() -> None:
    found = gpus_of(
        config(
            *SERVERS,
            "train.device=cuda",
            "rollout.actors=2",
            "engine.sglang.tensor_parallel=2",
            "engine.sglang.backend=nccl",
        )
    )
    assert found == ((0,), ((1, 2), (3, 4)), (5, 6)) and found.needed == 7
    assert str(found) == "trainer 0; server-0 1, 2; server-1 3, 4; rollout-0 5; rollout-1 6"


def test_servers_that_are_lent_have_those_of_the_trainers_ranks() -> None:
    lent = ("rollout.actors=3", "rollout.lent_actors=2", "rollout.lending=switch")
    parallel = "engine.sglang.tensor_parallel=2"
    given = config(*SERVERS, "train.device=cuda", "train.ranks=4", *lent, parallel)
    found = gpus_of(given)
    assert found == ((0, 1, 2, 3), ((4, 5), (0, 1), (2, 3)), ()) and found.needed == 6
    assert str(found) == (
        "trainer 0, 1, 2, 3; server-0 4, 5; server-1 0, 1 (lent); server-2 2, 3 (lent)"
    )
    assert actor_gpus(given, 0).server == (4, 5) and actor_gpus(given, 2).server == (2, 3)


def test_gpus_that_nobody_else_needs_are_the_trainers_also_where_they_are_lent() -> None:
    lent = ("rollout.actors=2", "rollout.lent_actors=1", "rollout.lending=switch")
    open_ = config(*SERVERS, "train.device=cuda", *lent)
    assert settled_ranks(open_, 8) == 7 and gpus_of(open_).needed == 2


@pytest.mark.parametrize(
    ("trainer", "actors", "ranks", "backend"),
    list(product(("cpu", "cuda"), (1, 3), (1, 4), ("gloo", "nccl"))),
)
def test_no_gpu_is_anybody_elses(trainer: str, actors: int, ranks: int, backend: str) -> None:
    found = gpus_of(
        config(
            *SERVERS,
            f"train.device={trainer}",
            f"rollout.actors={actors}",
            f"engine.sglang.tensor_parallel={ranks}",
            f"engine.sglang.backend={backend}",
        )
    )
    every = [*found.trainer, *(n for server in found.servers for n in server), *found.senders]
    assert sorted(every) == list(range(found.needed))
    assert all(len(server) == ranks for server in found.servers) and len(found.servers) == actors
    assert len(found.senders) == (actors if backend == "nccl" else 0)


def test_servers_of_somebody_else_have_none_of_ours() -> None:
    urls = ("engine.kind=sglang", 'engine.sglang.urls=["http://127.0.0.1:1"]')
    assert gpus_of(config(*urls)).needed == 0
    assert gpus_of(config(*urls, "engine.sglang.backend=nccl")) == ((), (), (0,))


def test_check_shows_them() -> None:
    (row,) = [r for r in derived(config(*SERVERS, "train.device=cuda"), 2) if r.name == "GPUs"]
    assert (row.value, row.meaning) == ("2", "trainer 0; server-0 1")


def test_what_is_visible_here_is_counted_there() -> None:
    assert visible([0, 2], "5, 6,7") == "5,7" and visible([0, 2], None) == "0,2"
