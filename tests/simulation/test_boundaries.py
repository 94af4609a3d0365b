"""Everything is killed at one event of a run, at another each time, from the first to the last:
what is durable is then any earlier event, by when the journal had committed. Each time the resumed
run finishes with every invariant, and at lag 0 with the same weights."""

from __future__ import annotations

import pytest
from test_found import plain

from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.simulation.checker import checker
from asyncrl.simulation.injector import Injector
from asyncrl.simulation.run import SeedReport, simulate

KILLS = 200
SHARES = 8
OF_CI = {0, 2, 5, 7}
"""Shares that CI runs; the others are `make soak`'s."""


def config(share: int) -> Config:
    """By turns on policy and ahead of it, with a journal that commits at once, soon, and late."""
    ahead = {"max_lag": share % 2, "depth": share % 2}
    return plain(5, staleness=ahead, journal={"commit_ms": (0, 20, 100, 500)[share // 2]})


def killed_at(number: int, config: Config, monkeypatch: pytest.MonkeyPatch) -> SeedReport:
    """The run of which everything is killed when that event has been appended, for the first
    time."""
    injectors: list[Injector] = []
    began, appended = Injector.__init__, checker.Checker.on_event

    def admitted_version(self: Injector, world: object, clock: object) -> None:
        began(self, world, clock)  # type: ignore[arg-type]
        injectors.append(self)

    def on_event(self: checker.Checker, at: int, event: e.AnyEvent) -> None:
        appended(self, at, event)
        [injector] = injectors
        if at == number and not injector.injected:
            injector.happened("kill_everything")
            injector.world.kill_everything()

    with monkeypatch.context() as patched:
        patched.setattr(Injector, "__init__", admitted_version)
        patched.setattr(checker.Checker, "on_event", on_event)
        return simulate(5, config=config, faults=[])


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    [
        pytest.param(n, marks=pytest.mark.explore if n in OF_CI else pytest.mark.soak)
        for n in range(SHARES)
    ],
)
def test_a_run_killed_at_any_event_goes_on_and_finishes(
    share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = config(share)
    whole = simulate(5, config=shape, faults=[])
    assert whole.ok and len(whole.lives) == 1
    count = KILLS // SHARES
    lost = 0
    for turn in range(count):
        number = 1 + (whole.events - 1) * (turn * SHARES + share) // (KILLS - 1)
        report = killed_at(number, shape, monkeypatch)
        assert report.ok, f"killed at event {number} of {whole.events}: {report.violation}"
        assert report.faults == {"kill_everything": 1} and report.lives[-1].ok
        lost += report.lost_tail
        if not shape.staleness.max_lag:
            assert report.versions == whole.versions, f"killed at event {number} of {whole.events}"
    assert lost > 0 or not shape.journal.commit_ms
