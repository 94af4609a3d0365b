"""Mutants are drawn by a seed, judged by what reaches them, and counted by file."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mutant_judge
import mutants
import pytest
from mutants import Change, Record, spans, tried

SOURCE = """\
LIMIT = 3

def near(x, most=LIMIT):
    if x > most:
        return False
    return True

def far(x):
    return not near(x)
"""
RECORD = Record(
    ["simulate 0", "t.py::slow", "t.py::quick", "tests/a/test_b.py::test_c"],
    [1.0, 5.0, 0.5, 0.1],
    {"a/b.py": {"1": [3], "4": [0, 1, 2], "5": [1], "9": [2]}},
)


def test_a_sample_is_drawn_by_the_seed() -> None:
    known = [Change("a.py", line, "core/NumberReplacer", 0) for line in range(40)]
    one, again, other = (mutants.draw(known, seed) for seed in (0, 0, 1))
    assert one == again != other
    assert sorted(one) == sorted(other) == known


@pytest.mark.parametrize(
    ("operator", "noise"),
    [
        ("core/ReplaceBinaryOperator_BitOr_Add", True),
        ("core/ReplaceComparisonOperator_Eq_Is", True),
        ("core/ReplaceComparisonOperator_Is_Lt", True),
        ("core/ReplaceComparisonOperator_In_IsNot", True),
        ("core/ReplaceComparisonOperator_Is_IsNot", False),
        ("core/ReplaceComparisonOperator_NotIn_In", False),
        ("core/ReplaceComparisonOperator_Eq_NotEq", False),
        ("core/ReplaceComparisonOperator_Lt_GtE", False),
        ("core/ReplaceBinaryOperator_Add_Sub", False),
        ("core/NumberReplacer", False),
    ],
)
def test_a_change_of_types_or_that_no_one_would_write_is_not_drawn(
    operator: str, noise: bool
) -> None:
    assert bool(mutants.NOISE.match(operator)) == noise


@pytest.mark.parametrize(
    ("line", "judges"),
    [(4, [2, 0, 1]), (5, [1]), (6, []), (9, [2]), (3, [2, 0, 1]), (1, [2, 0, 1])],
)
def test_who_reaches_a_line_judges_it_the_fastest_first(line: int, judges: list[int]) -> None:
    """A line that is executed at the import is judged by those that go through what it is for."""
    found, imported = spans(SOURCE, line)
    assert RECORD.reaching("a/b.py", found) == judges
    assert imported == (line in (1, 3))


def test_a_budget_of_seconds_has_the_first_one_in_any_case() -> None:
    assert RECORD.within([2, 0, 1], 1.5) == [2, 0]
    assert RECORD.within([1, 0], 1.0) == [1]
    assert RECORD.within([], 1.0) == []


@pytest.mark.parametrize(
    ("noticed", "line", "asked", "by"),
    [
        ({"simulate 0"}, 4, [["simulate 0"]], "simulation"),
        ({"t.py::slow"}, 4, [["simulate 0"], ["t.py::quick"], ["t.py::slow"]], "tests"),
        (set(), 9, [["t.py::quick"]], ""),
        (set(), 6, [], ""),
    ],
)
def test_the_simulation_judges_before_tests_and_the_file_is_as_it_was(
    noticed: set[str],
    line: int,
    asked: list[list[str]],
    by: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "a" / "b.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    heard: list[list[str]] = []

    def ask(_judge: Any, _clone: Path, record: Record, judges: list[int]) -> bool:
        assert path.read_text() != SOURCE
        heard.append([record.judges[each] for each in judges])
        return not noticed.isdisjoint(heard[-1])

    monkeypatch.setattr(mutants, "killed", ask)
    monkeypatch.setattr(mutants, "mutated", lambda source, change: source.replace("x", "y"))
    judge: Any = None
    found = tried(tmp_path, Change("a/b.py", line, "", 0), RECORD, judge)
    assert (found.killed_by, heard) == (by, asked)
    assert "-def near(x, most=LIMIT):" in found.diff and path.read_text() == SOURCE


def test_as_many_as_asked_for_are_drawn_of_those_that_are_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.py").write_text(SOURCE)
    odd = lambda source, change: source if change.line % 2 else None  # noqa: E731
    monkeypatch.setattr(mutants, "mutated", odd)
    known = [Change("b.py", line, "", 0) for line in range(1, 10)]
    assert [each.line for each in mutants.programs(tmp_path, known, 3)] == [1, 3, 5]
    assert [each.line for each in mutants.programs(tmp_path, known, 9)] == [1, 3, 5, 7, 9]


def test_a_process_judges_by_tests_and_goes_on(tmp_path: Path) -> None:
    """By one that passes, one that fails, one that is there no more, and one that hangs."""
    (tmp_path / "test_it.py").write_text(
        "def test_well(): pass\ndef test_ill(): assert 0\ndef test_hangs():\n    while True: pass\n"
    )
    code = "import mutant_judge; mutant_judge.LIBRARIES = (); mutant_judge.serve()"
    said = []
    for names in (["well"], ["well", "ill"], ["gone"], ["hangs"], ["well"]):
        judges = [f"test_it.py::test_{name}" for name in names]
        cpu_s = 1 if names == ["hangs"] else 3
        said.append({"judges": judges, "log": str(tmp_path / "log"), "cpu_s": cpu_s, "limit_s": 60})
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="".join(f"{json.dumps(order)}\n" for order in said),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(mutants.__file__).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["survived", "killed", "survived", "killed", "survived"]


def test_the_examples_in_its_docstrings_hold() -> None:
    for module in (mutants, mutant_judge):
        assert doctest.testmod(module).attempted >= 1
        assert not doctest.testmod(module).failed
