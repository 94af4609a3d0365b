"""GPUs that are counted anew when a run heals, by a program in place of the driver."""

from __future__ import annotations

import pytest

from asyncrl.config import load
from asyncrl.config.gpus import gpus_of
from asyncrl.launch import machine_left
from asyncrl.launch.machine_left import NONE_FAULTY, Faulty, settings_left

TWO = "train.replicas=2", "train.context_ranks=2"
GIVEN = load(None, ["train.device=cuda", "train.ranks=4", *TWO], {})


async def test_a_rank_goes_with_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_left, "COUNT_GPUS", "print(3)")
    found = await settings_left(GIVEN, 64, 0)
    assert found is not None
    left, said = found
    assert (left.train.ranks, left.train.replicas, left.train.context_ranks) == (3, 1, 1)
    assert said == "The trainer continues with 3 of 4 ranks: this machine has 3 GPUs."


async def test_a_server_that_was_lent_it_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight GPUs four are the trainer's and lent to two servers, and four are another two's."""
    servers = ["engine.kind=sglang", 'engine.sglang.launch=["python3"]', "model.dtype=bfloat16"]
    size = ["engine.sglang.device=cuda", "engine.sglang.tensor_parallel=2"]
    lent = ["rollout.actors=4", "rollout.lent_actors=2", "rollout.lending=switch"]
    given = load(None, ["train.device=cuda", "train.ranks=4", *servers, *size, *lent], {})
    monkeypatch.setattr(machine_left, "COUNT_GPUS", "print(7)")
    found = await settings_left(given, 64, 0)
    assert found is not None
    left, _ = found
    assert (left.train.ranks, left.rollout.actors, left.rollout.lent_actors) == (3, 3, 1)
    assert gpus_of(left) == ((0, 1, 2), ((3, 4), (5, 6), (0, 1)), ())


@pytest.mark.parametrize(
    ("gpus", "machines", "ranks", "trainers"),
    [(4, 2, 12, 2), (4, 1, 8, 1), (4, 3, 12, 2), (4, 0, 4, 0), (3, 1, 6, 1)],
)
async def test_ranks_go_with_the_machines_that_join_for_them(
    monkeypatch: pytest.MonkeyPatch, gpus: int, machines: int, ranks: int, trainers: int
) -> None:
    """Of three machines with four ranks each."""
    sets = ["cluster.kind=agents", "cluster.trainer_agents=2", "train.ranks=12"]
    given = load(None, ["train.device=cuda", *sets], {})
    monkeypatch.setattr(machine_left, "COUNT_GPUS", f"print({gpus})")
    found = await settings_left(given, 64, machines)
    assert found is not None
    left, said = found
    assert (left.train.ranks, left.cluster.trainer_agents) == (ranks, trainers)
    assert said == (
        f"The trainer continues with {ranks} of 12 ranks: this machine has {gpus} GPUs, and "
        f"{trainers} of 2 machines for the trainer are there."
    )


@pytest.mark.parametrize(
    "program", ["print(0)", "raise SystemExit(3)", "import time; time.sleep(100)"]
)
async def test_where_nobody_says_how_many_there_are_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(machine_left, "COUNT_GPUS", program)
    monkeypatch.setattr(machine_left, "COUNT_S", 1.0)
    assert await settings_left(GIVEN, 64, 0) is None


async def test_a_faulty_rank_takes_its_place_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA its GPU, if there is no other; else a rank less."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    count = "import os; v = os.environ.get('CUDA_VISIBLE_DEVICES'); print(len(v.split(',')) if v "
    for gpus, ranks in ((5, 4), (4, 3)):
        monkeypatch.setattr(machine_left, "COUNT_GPUS", f"{count} else {gpus})")
        faulty = await NONE_FAULTY.and_rank(GIVEN, 1)
        assert faulty.visible == ",".join(str(n) for n in range(gpus) if n != 1)
        found = await settings_left(GIVEN, 64, 0, faulty)
        assert found is not None and found[0].train.ranks == ranks
        twice = await faulty.and_rank(GIVEN, 1)
        assert twice == Faulty(0, ",".join(str(n) for n in range(gpus) if n not in (1, 2)))
    here = load(None, ["train.ranks=3"], {})
    faulty = await NONE_FAULTY.and_rank(here, 2)
    found = await settings_left(here, 64, 0, faulty)
    assert found is not None and found[0].train.ranks == 2
    assert found[1] == (
        "The trainer continues with 2 of 3 ranks: this machine has 64 cores, without 1 for ranks "
        "that failed."
    )
