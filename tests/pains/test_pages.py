"""The pages on pains and on reliability name tests that exist, and every test named after a pain is
on its page."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def functions(file: str, pains_alone: bool = False) -> frozenset[str]:
    """The tests of a file; with `pains_alone`, at least those that are named after a pain."""
    if not (TESTS / file).is_file():
        return frozenset()
    text = (TESTS / file).read_text()
    if pains_alone and "test_pain_" not in text:
        return frozenset()  # which most of five hundred files need not be parsed for
    tree = ast.parse(text)
    return frozenset(
        f.name
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) and f.name.startswith("test_")
    )


def rows(page: str) -> list[list[str]]:
    """The cells of every row of the page's tables, without their heads."""
    found, before = [], ""
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("|") and before.startswith("|") and not set(line) <= set("|- "):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        before = line
    return found


@pytest.mark.parametrize("page", ["pains.md", "reliability.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = REFERENCE.findall((DOCS / page).read_text())
    assert len(named) > 20
    missing = [f"{file}::{name}" for file, name in named if name not in functions(file)]
    assert not missing, f"{page} names what is not there: {missing}"


def test_every_row_of_pains_names_its_tests_or_what_is_to_come() -> None:
    table = rows("pains.md")
    assert [int(row[0]) for row in table] == list(range(1, 26))
    for number, pain, answer, answered in table:
        names = {name for _, name in REFERENCE.findall(answered)}
        assert names or answered.startswith("to come: "), f"{number}, {pain}: {answer}"
        assert all(name.startswith(f"test_pain_{int(number):02}_") for name in names), (
            f"{number}: {names}"
        )


def test_every_test_named_after_a_pain_is_in_its_row() -> None:
    named = {name for row in rows("pains.md") for _, name in REFERENCE.findall(row[3])}
    there = {
        name
        for file in TESTS.rglob("test_*.py")
        for name in functions(str(file.relative_to(TESTS)), pains_alone=True)
        if name.startswith("test_pain_")
    }
    assert there == named


def test_every_promise_of_reliability_names_a_test() -> None:
    table = rows("reliability.md")
    assert len(table) > 15
    assert [row[0] for row in table if not REFERENCE.search(row[-1])] == []
