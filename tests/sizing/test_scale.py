"""A cluster in virtual time: it keeps its slots busy, and its ledger balances."""

from __future__ import annotations

import pytest

from asyncrl import cli
from asyncrl.sizing.scale import SLOTS, scale


@pytest.mark.explore
def test_a_small_cluster_keeps_its_slots_busy() -> None:
    came = scale(8, 600.0)
    assert came.violation is None and came.checks > 1000
    assert came.in_flight > 0.9 * 8 * SLOTS and came.tokens > 0.8 * 8 * SLOTS * 600


@pytest.mark.explore
def test_a_small_cluster_of_agents_keeps_its_slots_busy_while_they_think() -> None:
    came = scale(8, 600.0, agents=True)
    assert came.violation is None and came.checks > 1000
    assert came.in_flight > 0.9 * 8 * SLOTS and came.tokens > 0.8 * 8 * SLOTS * 600


def test_a_cluster_is_told_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--engines", "4", "--hours", "0.05"]) == 0
    said = capsys.readouterr().out
    assert "engines   4;" in said and "180 virtual s" in said and "violates" not in said
