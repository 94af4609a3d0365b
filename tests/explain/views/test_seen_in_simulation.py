"""The rollouts that are seen in a journal, against the ledger of a run with faults: each is seen
once, and what became of them adds up to what the run counted itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from some_values import some

from asyncrl.experience.experience import Experience
from asyncrl.experience.ledger import Account
from asyncrl.explain.views.seen_rollouts import seen_rollouts
from asyncrl.journal import state
from asyncrl.simulation import fake_world
from asyncrl.simulation.run import SeedReport, simulate, simulate_agents
from asyncrl.simulation.sim_disk import SimDisk

ENDED = ("trained", "discarded", "buried")


def counts(account: Account) -> Counter[str]:
    return Counter({"": account.trained, **account.discarded})


@pytest.mark.parametrize("seed", some([0, 1, 3, 4, 10, 11], 6))
@pytest.mark.parametrize("run", [simulate, simulate_agents])
def test_what_became_of_rollouts_adds_up_to_the_ledger(
    run: Callable[[int], SeedReport], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    monkeypatch.setattr(fake_world, "SimDisk", lambda: disk)
    assert run(seed).ok
    forgotten = disk.rows[0].first - 1 if disk.rows else disk.last
    base, end = Experience(), state(disk)
    if forgotten:
        first = min(number for number, _ in disk.snapshots() if number >= forgotten)
        base = Experience.of(disk.snapshot(first))
    seen = list(seen_rollouts(disk, forgotten))
    assert len({one.rollout for one in seen}) == len(seen)
    assert {one.rollout for one in seen if one.status not in ENDED} == set(end.rollouts)
    found = Counter(one.reason for one in seen if one.status in ENDED)
    assert found == counts(end.ledger.rollouts) - counts(base.ledger.rollouts)
    assert found[""] == sum(one.status == "trained" for one in seen)
