"""`asyncrl simulate`: what a failing seed and a good one say, and what is no range of seeds."""

from __future__ import annotations

from functools import cache

import pytest

from asyncrl import cli
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.experience import events as e
from asyncrl.simulation import command
from asyncrl.simulation.command import Tally, tally
from asyncrl.simulation.game_worlds import GameReport
from asyncrl.simulation.observer import Violation


def test_a_failing_seed_is_printed_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = EventStore.record

    def forgetful(self: EventStore, event: e.AnyEvent) -> None:
        if not isinstance(event, e.Sealed):
            record(self, event)

    monkeypatch.setattr(EventStore, "record", forgetful)
    assert cli.main(["simulate", "--seeds", "4:6"]) == 1
    said = capsys.readouterr().out
    assert "seed 4 violates" in said and "again: asyncrl simulate --seed 4\n" in said
    assert cli.main(["simulate", "--seed", "4"]) == 1
    assert "seed 4 violates" in capsys.readouterr().out


def test_a_good_seed_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--seed", "0"]) == 0
    assert "every invariant held" in capsys.readouterr().out


@pytest.mark.explore
def test_tallies_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("simulate", "simulate_agents"):  # a seed's run is the same each time (test_replay)
        monkeypatch.setattr(command, run, cache(getattr(command, run)))
    whole, parts = tally(range(4)), Tally()
    for seed in range(4):
        parts.add(tally([seed]))
    assert whole.virtual_s == pytest.approx(parts.virtual_s)  # sums of floats, in other orders
    parts.virtual_s = whole.virtual_s
    assert whole == parts and whole.seeds == 4 and whole.played == 1


@pytest.mark.explore
def test_agents_may_have_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--agents", "--seed", "3"]) == 0
    assert "1 of agents; " in capsys.readouterr().out


def test_games_are_counted_by_how_they_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Violation("pairs", "the guest gives up game 2, which has ended")
    reports = {
        7: GameReport(7, {"host": 2, "guest": 3}, ended=9, given_up=1, slowest_s=4.5),
        8: GameReport(8, {"host": 1, "guest": 1}, ended=5, slowest_s=2.0, violation=bad),
    }
    monkeypatch.setattr(command, "simulate_games", reports.__getitem__)
    assert cli.main(["simulate", "--games", "--seeds", "7:9"]) == 1
    said = capsys.readouterr().out
    assert "games     15, of which 1 were given up in all runs; the slowest took 4.5" in said
    assert "7 lives" in said and "again: asyncrl simulate --games --seed 8\n" in said
    assert cli.main(["simulate", "--games", "--engines", "2"]) == 2


@pytest.mark.parametrize("text", ["3", "5:5", "a:b", "-1:4"])
def test_wrong_seeds_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", f"--seeds={text}"])
    assert ended.value.code == 2 and "is not A:B" in capsys.readouterr().err
