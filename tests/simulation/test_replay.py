"""A seed decides everything: the same one gives the same run, also in another process, and another
one gives another."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest
import trio
from some_values import some

from asyncrl.simulation.run import simulate
from asyncrl.simulation.task_order import replayable

SEEDS = (7, 3)
first_of = cache(simulate)


async def _order() -> list[int]:
    found: list[int] = []

    async def one(number: int) -> None:
        await trio.lowlevel.checkpoint()
        found.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(one, number)
    return found


def test_the_order_of_tasks_is_the_seeds_and_trio_is_left_as_it_was() -> None:
    scheduler = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    orders = []
    for seed in (1, 1, 2):
        with replayable(seed):
            orders.append(trio.run(_order))
    assert orders[0] == orders[1] != orders[2]
    assert before == (scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate())


@pytest.mark.parametrize("seed", some(SEEDS))
def test_a_seed_replays_to_the_last_event(seed: int) -> None:
    first, second = first_of(seed), simulate(seed)
    assert first.events and first == second


@pytest.mark.explore
def test_other_seeds_are_other_runs() -> None:
    assert len({first_of(seed).digest for seed in (*SEEDS, 0, 8, 9)}) == 5


@pytest.mark.explore
def test_a_seed_is_the_same_in_any_process() -> None:
    """By whatever hashes of texts: this process has drawn others."""
    program = (
        f"from asyncrl.simulation.run import simulate\nfor seed in {SEEDS}: "
        "print(simulate(seed).digest)"
    )
    said = set()
    for hash_seed in ("0", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        said.add(
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert said == {"".join(f"{first_of(seed).digest}\n" for seed in SEEDS)}
