"""The tables of the bench of selection, of runs that are made up; and its ways can be set."""

from __future__ import annotations

import pytest
import selection

from asyncrl import config as configuration


def made_up(way: str, generated: int, end: float, seed: int = 0) -> selection.SelectedRun:
    half = selection.Reached(10, 0.2, 5.0, generated // 2, generated // 8)
    last = selection.Reached(20, end, 10.0, generated, generated // 4)
    ended = {"pruned_unlikely": 30} if way == "unlikely" else {}
    return selection.SelectedRun(
        *(way, seed, 20, 0.8, [selection.Reached(0, 0.2, 1.0), half, last]),
        generated=generated,
        trained=generated // 4,
        equal=generated // 5,
        admitted=100,
        ended=ended,
        training_s=9.0,
    )


def test_ways_are_compared_at_the_tokens_of_the_shortest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    selection.table([made_up("plain_4", 1000, 0.4), made_up("unlikely", 1500, 0.8)])
    head, _, _, plain, pruned = capsys.readouterr().out.splitlines()
    assert head.startswith("accuracy after 1,000 generated tokens")
    numbers = ["1", "0.400", "0.400", "0.400", "1,000", "0.20", "4.00", "0.00"]
    assert plain.split() == ["plain_4", *numbers]
    numbers = ["1", "0.400", "0.400", "0.800", "1,500", "0.20", "4.00", "0.30"]
    assert pruned.split() == ["unlikely", *numbers]


def test_ways_are_compared_with_the_first_at_the_accuracy_that_ends_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [made_up("plain_8", 1000, 0.9), made_up("plain_8", 1000, 0.7, seed=1)]
    selection.table_until([*runs, made_up("both", 500, 0.9), made_up("both", 500, 0.9, 1)], 0.8)
    _, _, _, plain, best = capsys.readouterr().out.splitlines()
    same = ["1.00", "1.00", "1.00"]
    assert plain.split() == ["plain_8", "2", "0.800", "1", "20", "1,000", "0.20", "4.00", *same]
    over = ["1.00", "0.50", "1.00"]
    assert best.split() == ["both", "2", "0.900", "2", "20", "500", "0.20", "4.00", *over]


@pytest.mark.parametrize("way", selection.WAYS)
def test_each_way_can_be_set(way: str) -> None:
    loaded = configuration.load(selection.RUN_TOML, selection.WAYS[way], {})
    assert loaded.rollout.prune in (way, "none") or way == "inverse"
