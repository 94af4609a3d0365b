"""The number of ranks of each life of a run, and the moment at which more of them begin one."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from asyncrl.config import Config, load
from asyncrl.launch import trainer_places
from asyncrl.launch.cluster.machines import Machines
from asyncrl.launch.trainer_places import TrainerPlaces
from asyncrl.training.checkpoint_index import checkpoint_path


class Joined:
    """Machines for the trainer, of which `later` come when they are waited for."""

    def __init__(self, count: int, later: int = 0) -> None:
        self.count, self.later = count, later

    def count_for(self, role: str) -> int:
        assert role == "trainer"
        return self.count

    async def come(self, role: str, least: int) -> None:
        self.count = min(least, self.count + self.later)


def run_of(least: int) -> Config:
    """Four ranks on each of three machines."""
    sets = ["cluster.kind=agents", "cluster.trainer_agents=2", "train.ranks=12"]
    return load(None, [*sets, f"train.min_ranks={least}"], {})


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_places, "cores_here", lambda config: list(range(8)))


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("least", "count", "later", "ranks", "said"),
    [
        (0, 0, 0, 4, "continues with 4 of 12 ranks"),
        (5, 1, 0, 8, "continues with 8 of 12 ranks"),
        (5, 0, 1, 8, "train.min_ranks is 5: it waits for machines."),
        (5, 0, 0, None, "The run ends: 4 of 12 ranks are left, and train.min_ranks is 5;"),
        (9, 0, 1, None, "The run ends: 8 of 12 ranks are left, and train.min_ranks is 9;"),
        (12, 0, 2, 12, "it waits for machines."),
    ],
)
async def test_a_life_has_the_ranks_that_there_are_and_no_fewer_than_the_least(
    least: int, count: int, later: int, ranks: int | None, said: str
) -> None:
    notes, config = list[str](), run_of(least)
    places = TrainerPlaces(config, notes.append)
    places.machines = cast(Machines, Joined(count, later))
    found = await places.settings(config)
    assert (found and found.train.ranks) == ranks
    assert any(said in note for note in notes), notes


@pytest.mark.usefixtures("cores")
async def test_the_first_checkpoint_after_a_machine_has_come_begins_another_life(
    tmp_path: Path,
) -> None:
    config = run_of(0)
    places = TrainerPlaces(config, lambda _: None)
    machines = Joined(0)
    places.machines = cast(Machines, machines)
    less = await places.settings(config)
    assert less is not None and not places.more(less, tmp_path)
    checkpoint_path(tmp_path, 3).mkdir(parents=True)
    machines.count = 1
    assert not places.more(less, tmp_path), "it would lose the steps since version 3"
    machines.count = 0
    assert not places.more(less, tmp_path)
    checkpoint_path(tmp_path, 4).mkdir()
    machines.count = 3  # one more than the run has ranks for
    assert not places.more(less, tmp_path)
    checkpoint_path(tmp_path, 5).mkdir()
    assert places.more(less, tmp_path)
    whole = await places.settings(less)
    assert whole is not None and whole.train.ranks == 12
    checkpoint_path(tmp_path, 6).mkdir()
    assert not places.more(whole, tmp_path)
