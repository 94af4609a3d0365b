"""Tokens that a run's forking agents decode for each end of their trees, over those of independent
episodes: the mean of the paths to the ends. It reads the journal of a run, and nothing else.

A tree that forks into k ends at half depth decodes (k + 1) / 2k of them, if its calls are equally
long: 0.75, 0.67, 0.63 for 2, 3 and 4 ends.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.rollout_records import Wanted, newest
from asyncrl.explain.views.seen_turns import SeenTurn


def paths(turns: Sequence[SeenTurn]) -> list[int]:
    """Sampled tokens from the root to each end."""
    whole = list[int]()
    for turn in turns:
        whole.append(turn.tokens + (0 if turn.parent is None else whole[turn.parent]))
    inner = {turn.parent for turn in turns}
    return [tokens for number, tokens in enumerate(whole) if number not in inner]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    forked = [
        (sum(turn.tokens for turn in one.turns), paths(one.turns))
        for one in newest(RunFiles(parser.parse_args().run), Wanted(), None)
        if len(paths(one.turns)) > 1
    ]
    if not forked:
        sys.exit("no episode of this run forks")
    ends, independent = sum(len(of) for _, of in forked), sum(sum(of) for _, of in forked)
    decoded = sum(tokens for tokens, _ in forked)
    print(f"{len(forked)} episodes that fork, {ends} ends")
    print(f"decoded tokens an end: {decoded / ends:.1f}")
    print(f"of an independent episode: {independent / ends:.1f}; ratio {decoded / independent:.2f}")


if __name__ == "__main__":
    main()
