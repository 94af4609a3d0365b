"""The rollouts that are seen in a journal, against the ledger of a run with faults: each is seen
once, and what became of them adds up to what the run counted itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from some_values import some

from asyncrl.experience.experience import Experience
from asyncrl.experience.ledger import Ledger
from asyncrl.explain.views.newest_rollouts import living, newest_ended
from asyncrl.journal import state
from asyncrl.simulation import fake_world
from asyncrl.simulation.run import SeedReport, simulate, simulate_agents
from asyncrl.simulation.sim_disk import SimDisk


def counts(ledger: Ledger) -> Counter[str]:
    """Ended rollouts by what became of them, foreign ones among them."""
    accounts = ledger.rollouts, ledger.foreign.rollouts
    each = [Counter({"": account.trained, **account.discarded}) for account in accounts]
    return each[0] + each[1]


@pytest.mark.parametrize("seed", some([0, 1, 3, 4, 7, 17, 11], 7))
def test_what_became_of_rollouts_adds_up_to_the_ledger(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    adds_up(simulate, seed, monkeypatch)


@pytest.mark.parametrize("seed", some([0, 1, 4, 7, 11], 5))
def test_what_became_of_episodes_adds_up_to_the_ledger(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    adds_up(simulate_agents, seed, monkeypatch)


def adds_up(run: Callable[[int], SeedReport], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    monkeypatch.setattr(fake_world, "SimDisk", lambda: disk)
    assert run(seed).ok
    forgotten = disk.rows[0].first - 1 if disk.rows else disk.last
    base, end = Experience(), state(disk)
    if forgotten:
        first = min(number for number, _ in disk.snapshots() if number >= forgotten)
        base = Experience.of(disk.snapshot(first))
    seen = list(newest_ended(disk, forgotten))
    assert len({one.rollout for _, one in seen}) == len(seen)
    assert {one.rollout for one in living(disk)} == set(end.rollouts)
    found = Counter(one.reason for _, one in seen)
    assert found == counts(end.ledger) - counts(base.ledger)
    assert found[""] == sum(one.status == "trained" for _, one in seen)
    numbers = [number for number, _ in seen]
    assert numbers == sorted(numbers, reverse=True)
    if numbers:  # what ended after an event is the same, of which some lived at it
        middle = numbers[len(numbers) // 2]
        assert list(newest_ended(disk, forgotten, middle)) == [
            one for one in seen if one[0] > middle
        ]
        until = list(newest_ended(disk, forgotten, until=middle))
        assert until == [one for one in seen if one[0] <= middle]
