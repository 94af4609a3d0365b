"""Mutants are drawn by a seed, judged by the tests of their room, and counted by file."""

from __future__ import annotations

import doctest
import sqlite3
from pathlib import Path

import mutants
import pytest


def session(path: Path, operators: list[str]) -> None:
    """A session as cosmic-ray begins one: a job for each mutant."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE work_items (job_id)")
        database.execute(
            "CREATE TABLE mutation_specs "
            "(job_id, operator_name, module_path, start_pos_row, occurrence)"
        )
        for row, operator in enumerate(operators):
            database.execute("INSERT INTO work_items VALUES (?)", (f"{row}",))
            database.execute(
                "INSERT INTO mutation_specs VALUES (?, ?, 'a.py', ?, 0)", (f"{row}", operator, row)
            )


def jobs(path: Path) -> set[str]:
    with sqlite3.connect(path) as database:
        found = {name for (name,) in database.execute("SELECT job_id FROM work_items")}
        assert found == {name for (name,) in database.execute("SELECT job_id FROM mutation_specs")}
    return found


def test_a_sample_is_drawn_by_the_seed_and_has_no_change_of_types(tmp_path: Path) -> None:
    drawn = []
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        session(
            tmp_path / name,
            ["core/ReplaceBinaryOperator_BitOr_Add"] * 20 + ["core/NumberReplacer"] * 20,
        )
        mutants.draw(tmp_path / name, 5, seed)
        drawn.append(jobs(tmp_path / name))
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(each) == 5 and min(map(int, each)) >= 20 for each in drawn)


def test_a_small_session_is_kept_whole(tmp_path: Path) -> None:
    session(tmp_path / "session", ["core/NumberReplacer"] * 3)
    mutants.draw(tmp_path / "session", 5, 0)
    assert len(jobs(tmp_path / "session")) == 3


def test_a_room_without_tests_is_refused() -> None:
    with pytest.raises(SystemExit, match="no folder of tests has its name; give --tests"):
        mutants.tests_of("docker")


def test_the_examples_in_its_docstrings_hold() -> None:
    assert doctest.testmod(mutants).attempted >= 4
    assert not doctest.testmod(mutants).failed
