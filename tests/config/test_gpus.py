"""GPUs of one machine: who has which, said before anything starts."""

from __future__ import annotations

from itertools import product

import pytest

from asyncrl.config import Config, load
from asyncrl.config.derived import derived
from asyncrl.config.gpus import gpus_of, visible

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
