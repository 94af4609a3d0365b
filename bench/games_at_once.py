"""Several policies that learn at once from one game, exactly on-policy, over doing them in turns.

Real coordinators, actors and links in virtual time (`asyncrl.simulation`), no faults, max_lag 0 for
all: each policy accumulates the games of fixed weights of all, and updates once (FlexMARL). In
turns, the games are played once for each policy, and only its own training takes time.

    python bench/games_at_once.py [--seeds 24]
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict

from asyncrl.simulation.game_worlds import GamePlan
from asyncrl.simulation.run import simulate_games


def seconds(seed: int, free: tuple[str, ...] = ()) -> tuple[float, list[str]]:
    """Virtual seconds of a seed's game until all runs have made their steps, and the policies."""
    report = simulate_games(seed, GamePlan(faults=False, on_policy=True, free=free))
    assert report.violation is None, report.violation
    return report.virtual_s, [*report.lives]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=24)
    options = parser.parse_args()
    ratios = defaultdict[int, list[float]](list)
    for seed in range(options.seeds):
        at_once, policies = seconds(seed)
        in_turns = sum(
            seconds(seed, tuple(other for other in policies if other != policy))[0]
            for policy in policies
        )
        ratios[len(policies)].append(in_turns / at_once)
    for count, found in sorted(ratios.items()):
        print(
            f"{count} policies ({len(found)} seeds): in turns over at once median "
            f"{statistics.median(found):.2f}, least {min(found):.2f}, most {max(found):.2f}"
        )


if __name__ == "__main__":
    main()
