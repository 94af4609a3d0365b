"""Games of two to four runs in virtual time: whatever is killed, a game ends well in all or in none
(`asyncrl/simulation/game_worlds.py`)."""

from __future__ import annotations

import pytest

from asyncrl.simulation.run import simulate_games


@pytest.mark.parametrize(
    "seeds",
    [
        range(6),
        pytest.param(range(6, 30), marks=pytest.mark.explore),
        pytest.param(range(30, 300), marks=pytest.mark.soak),
    ],
    ids=lambda seeds: f"{seeds.start}:{seeds.stop}",
)
def test_a_game_ends_well_in_all_runs_or_in_none(seeds: range) -> None:
    reports = [simulate_games(seed) for seed in seeds]
    assert not [str(report.violation) for report in reports if report.violation]
    assert min(report.ended for report in reports) >= 4
    assert {len(report.lives) for report in reports} == {2, 3, 4}
    assert sum(sum(report.lives.values()) for report in reports) > 3 * len(seeds)
    assert sum(report.replayed for report in reports)
    assert sum(report.given_up for report in reports) or len(seeds) < 20


@pytest.mark.explore
@pytest.mark.parametrize("seed", [155, 184])
def test_what_a_sweep_of_games_found_is_mended(seed: int) -> None:
    """A seek that was left after a drain; an agent that failed as a game was played again whose
    guest had ended it."""
    assert not simulate_games(seed).violation


@pytest.mark.explore
def test_a_seed_of_games_replays_to_the_last_event() -> None:
    assert simulate_games(4) == simulate_games(4)
