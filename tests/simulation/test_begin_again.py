"""A resume writes down what it goes on from: what it forgets, and what it keeps."""

from __future__ import annotations

import pytest
from simulation_support import plain
from some_values import some

from asyncrl.simulation.checker.checker import Checker
from asyncrl.simulation.injector import Injector
from asyncrl.simulation.run import SeedReport, simulate
from asyncrl.simulation.sim_disk import SimDisk


def killed_at_checkpoints(seed: int, monkeypatch: pytest.MonkeyPatch) -> SeedReport:
    """A run whose checkpoints are all damaged when that of version 4 is complete. In the next life
    everything is killed as soon as that of version 2 is, and the disk was full meanwhile: the state
    that belongs to it was never written."""
    injectors: list[Injector] = []
    began, written, kept = Injector.__init__, Checker.on_checkpoint, Checker.on_keep

    def made(self: Injector, world: object, clock: object) -> None:
        began(self, world, clock)  # type: ignore[arg-type]
        injectors.append(self)

    def on_checkpoint(self: Checker, version: int, weights: int) -> None:
        written(self, version, weights)
        [injector] = injectors
        life, world = len(injector.world.lives), injector.world
        if (life, version) in ((0, 4), (1, 2)):
            if not life:
                for checkpoint in world.checkpoints:
                    checkpoint.damaged = True
            world.sim_disk.full = False
            injector.happened("kill_everything")
            world.kill_everything()

    def on_keep(self: Checker, version: int) -> None:
        kept(self, version)
        [injector] = injectors
        world = injector.world
        world.sim_disk.full |= (len(world.lives), version) == (1, 2)

    monkeypatch.setattr(Injector, "__init__", made)
    monkeypatch.setattr(Checker, "on_keep", on_keep)
    monkeypatch.setattr(Checker, "on_checkpoint", on_checkpoint)
    settings = {"staleness": {"max_lag": 0, "depth": 0}, "journal": {"commit_ms": 500}}
    return simulate(seed, config=plain(seed, **settings), faults=[])


@pytest.mark.parametrize("seed", some(range(3)))
def test_the_state_of_a_checkpoint_that_is_made_again_is_not_that_of_the_first_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = killed_at_checkpoints(seed, monkeypatch)
    assert report.ok and report.lives[-1].ok, report.violation
    assert len(report.lives) == 3


def test_what_lies_before_a_resume_is_forgotten_at_its_first_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disks: list[SimDisk] = []
    firsts: dict[int, int] = {}  # by version: the first event on disk when its state is kept
    made, kept = SimDisk.__init__, Checker.on_keep

    def init(self: SimDisk) -> None:
        made(self)
        disks.append(self)

    def on_keep(self: Checker, version: int) -> None:
        kept(self, version)
        firsts[version] = disks[0].rows[0].first

    monkeypatch.setattr(SimDisk, "__init__", init)
    monkeypatch.setattr(Checker, "on_keep", on_keep)
    report = killed_at_checkpoints(0, monkeypatch)
    assert report.ok, report.violation
    assert firsts[2] == 1 < firsts[4]  # of the last life, which begins with version 0
