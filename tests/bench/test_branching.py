"""The exact part of the bench of branching, which the pages quote; and its ways can be set."""

from __future__ import annotations

import re
from pathlib import Path

import branching
import pytest
import selection

from asyncrl import config as configuration

PAGES = ("docs/rewards.md", "docs/research.md")


def test_the_estimator_is_exact_and_varies_as_the_pages_say() -> None:
    toy = branching.BinaryToy()
    forked = branching.measured(toy, branching.forked(toy, branching.in_the_middle))
    plain = branching.measured(toy, branching.independent(toy, 3))
    distinct = branching.measured(toy, branching.distinct(toy))
    for found in (forked, plain, distinct):
        assert (found.cosine, found.length) == pytest.approx((1, 1), abs=1e-9)
    said = f"{forked.variance:.4f}", f"{plain.variance:.4f}"
    for page in PAGES:
        text = (Path(branching.__file__).parents[1] / page).read_text()
        row = re.search(r"variance\s+at\s+equal\s+generated\s+tokens[^|]+", text)
        assert row is not None and re.findall(r"0\.08\d\d", row[0])[:2] == [*said], page
    assert f"{distinct.variance / plain.variance:.2f} times" in text


def test_forks_where_the_next_token_is_open_are_exact_too() -> None:
    toy = branching.BinaryToy()
    rule = toy.more_open_than(branching.OPEN)
    assert sum(tree.chance for tree in branching.trees(toy, rule)) == pytest.approx(1)
    found = branching.measured(toy, branching.forked(toy, rule))
    assert (found.cosine, found.length) == pytest.approx((1, 1), abs=1e-9)


@pytest.mark.parametrize("way", branching.WAYS)
def test_each_way_can_be_set(way: str) -> None:
    loaded = configuration.load(selection.RUN_TOML, branching.WAYS[way], {})
    assert loaded.rollout.fork in (way, "off")
