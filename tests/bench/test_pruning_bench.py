"""The table of the bench of pruning, of runs that are made up; and its ways can be set."""

from __future__ import annotations

import pruning
import pytest

from asyncrl import config as configuration


def made_up(way: str, generated: int, end: float) -> pruning.PrunedRun:
    curve = [(0, 0.2), (generated, end)]
    ended = {"pruned_unlikely": 30} if way == "unlikely" else {}
    return pruning.PrunedRun(way, 0, 20, curve, generated, generated // 4, 100, ended, 9.0)


def test_ways_are_compared_at_the_tokens_of_the_shortest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pruning.table([made_up("plain_4", 1000, 0.4), made_up("unlikely", 2000, 0.8)])
    head, _, _, plain, pruned = capsys.readouterr().out.splitlines()
    assert head.startswith("accuracy after 1,000 generated tokens")
    assert plain.split() == ["plain_4", "1", "0.400", "0.400", "0.400", "1,000", "4.00", "0.00"]
    assert pruned.split() == ["unlikely", "1", "0.500", "0.500", "0.800", "2,000", "4.00", "0.30"]


@pytest.mark.parametrize("way", pruning.WAYS)
def test_each_way_can_be_set(way: str) -> None:
    loaded = configuration.load(pruning.RUN_TOML, pruning.WAYS[way], {})
    assert loaded.rollout.prune in (way, "none") or way == "inverse"
