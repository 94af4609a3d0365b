"""GPUs that are counted anew when a run heals, by a program in place of the driver."""

from __future__ import annotations

import pytest

from asyncrl.config import load
from asyncrl.launch import machine_left
from asyncrl.launch.machine_left import settings_left

GIVEN = load(None, ["train.device=cuda", "train.ranks=4"], {})


async def test_a_rank_goes_with_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_left, "COUNT_GPUS", "print(3)")
    found = await settings_left(GIVEN, 64)
    assert found is not None
    left, said = found
    assert left.train.ranks == 3
    assert said == "The trainer goes on with 3 of 4 ranks: this machine has 3 GPUs."


@pytest.mark.parametrize(
    "program", ["print(0)", "raise SystemExit(3)", "import time; time.sleep(100)"]
)
async def test_where_nobody_says_how_many_there_are_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(machine_left, "COUNT_GPUS", program)
    monkeypatch.setattr(machine_left, "COUNT_S", 1.0)
    assert await settings_left(GIVEN, 64) is None
