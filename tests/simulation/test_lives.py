"""The curve of a run through its lives: that of a run that nobody killed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from simulation_support import plain
from some_values import some

from asyncrl.explain.curve import EvaluationPoint, StepPoint, point_of
from asyncrl.simulation import run
from asyncrl.simulation.fake_world import FakeWorld
from asyncrl.simulation.faults import Fault

OF_THE_STEP = ("version", "reward", "trained", "discarded", "lag_mean", "lag_max", "metrics")
"""Fields that do not say when, or what else was under way."""


@pytest.mark.explore
@pytest.mark.parametrize(
    "kind", ["kill_everything", "kill_coordinator", "kill_trainer", "checkpoint_damaged"]
)
@pytest.mark.parametrize("seed", some(range(3)))
def test_at_lag_0_the_curve_of_a_killed_and_resumed_run_is_that_of_an_uninterrupted_one(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds: list[FakeWorld] = []

    class Kept(FakeWorld):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            worlds.append(self)

    monkeypatch.setattr(run, "FakeWorld", Kept)
    settings: dict[str, Any] = {
        "task": {"eval_size": 1},  # so that each is done before the next is due
        "train": {"eval_every": 2},
        "staleness": {"max_lag": 0, "depth": 0},
    }
    config = plain(seed, **settings)
    fault = Fault(0.5 + 0.6 * seed, kind, seed)
    faults = [[], [fault, Fault(fault.at + 0.1, "kill_everything", seed)]]
    reports = [run.simulate(seed, config=config, faults=these) for these in faults]
    assert all(report.ok for report in reports) and len(reports[1].lives) > 1
    whole, killed = (map(point_of, world.sim_disk.lines) for world in worlds)
    mine, theirs = [*whole], [*killed]
    assert figures(mine) == figures(theirs) and len(figures(mine)) == 6
    accuracy = [
        {point.version: point.accuracy for point in points if isinstance(point, EvaluationPoint)}
        for points in (mine, theirs)
    ]
    assert accuracy[0].items() <= accuracy[1].items() and {0, 2, 4, 6} == accuracy[0].keys()


def figures(points: list[Any]) -> list[dict[str, object]]:
    return [
        {name: said for name, said in msgspec.structs.asdict(point).items() if name in OF_THE_STEP}
        for point in points
        if isinstance(point, StepPoint)
    ]
