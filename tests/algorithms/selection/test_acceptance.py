"""The end of a run whose filter leaves nearly nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algorithms.selection.acceptance import below_floor
from asyncrl.algorithms.selection.prompt_history import RECENT

finished = st.lists(st.booleans(), max_size=200).map(bytes)


def test_it_ends_where_nearly_nothing_passes_for_as_long_as_was_said() -> None:
    patient = 100
    assert below_floor(b"\0" * 99, 0.05, patient) == ""
    told = below_floor(b"\0" * 100, 0.05, patient)
    assert told.startswith(
        "of the last 100 groups none had rewards that differ, but rollout.accept_floor requires "
        "5.00%"
    )
    assert below_floor(b"\0" * 95 + b"\1" * 5, 0.05, patient) == ""
    assert "groups 4 had" in below_floor(b"\1" * 900 + b"\0" * 96 + b"\1" * 4, 0.05, patient)
    assert below_floor(b"\0" * 99 + b"\1", 0.0, patient) == ""
    assert below_floor(b"\0" * 100, 0.0, patient), "none at all is below any floor"


def test_a_group_whose_rewards_to_go_differ_passes_where_turns_are_credited() -> None:
    recent = b"\2" * 10
    assert below_floor(recent, 0.05, 10)
    assert below_floor(recent, 0.05, 10, signal="to_go") == ""
    assert below_floor(b"\0" * 8 + b"\1\2", 0.2, 10, signal="to_go") == ""
    assert below_floor(b"\0" * 9 + b"\2", 0.2, 10, signal="to_go")


def test_a_patience_that_is_longer_than_the_memory_ends_all_the_same() -> None:
    assert below_floor(bytearray(RECENT), 0.01, 10 * RECENT)


@given(finished, st.floats(0, 0.99), st.integers(1, 250))
def test_it_never_ends_where_the_floor_is_met_or_too_few_have_finished(
    recent: bytes, floor: float, patience: int
) -> None:
    last = list(recent)[-patience:]
    assert bool(below_floor(recent, floor, patience)) == (
        len(last) == patience and (not any(last) or sum(last) < floor * patience)
    )
