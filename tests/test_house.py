"""The house as docs/design.md describes it: folders, names, docstrings, line lengths."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("asyncrl", "actors", "staleness", "weightsync")
PRODUCT = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
BESIDE = sorted(
    path for name in ("tests", "bench", "docker") for path in (ROOT / name).rglob("*.py")
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "bench" / "README.md"])
COLUMNS = 100
DESIGN = (ROOT / "docs" / "design.md").read_text()

QUESTIONS = re.compile(r"(What|Whether|How|Which|Who|Whose|Where|Why|When)\b")
"""Words that no docstring begins with: it begins with a verb or a noun."""

QUOTED = re.compile(rf"[\"'][\s\\]*{QUESTIONS.pattern}")
"""A string of a source that begins so. Files without one need not be parsed."""

SAME_NAME = {
    "admission.py",
    "docker.py",
    "engine.py",
    "errors.py",
    "options.py",
    "run.py",
    "scripted.py",
}
"""File names that several folders have, because they mean the same in each, or because a built-in
strategy, verifier or kind of sandbox is a file by its name in run.toml (`run`, `docker`)."""


def section(number: int) -> str:
    """The text of a numbered section of the design page."""
    return DESIGN.split(f"\n## {number}. ")[1].split("\n## ")[0]


def classes() -> Iterator[tuple[Path, str]]:
    """Every class of the product whose name two lines or more seem to define, with its file: to
    parse all files takes seconds."""
    lines = {path: re.findall(r"\bclass\s+(\w+)", path.read_text()) for path in PRODUCT}
    seen = Counter(chain.from_iterable(lines.values()))
    for path, names in lines.items():
        if any(seen[name] > 1 for name in names):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and seen[node.name] > 1:
                    yield path, node.name


def docstrings() -> Iterator[tuple[Path, int, str]]:
    """Every docstring of the product, of its tests, benches and images, and every string that
    stands under an attribute, of files that have a string that begins with a question."""
    for path in (*PRODUCT, *BESIDE):
        text = path.read_text()
        if not QUOTED.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield path, node.lineno, text


def test_the_design_page_lists_every_folder_and_no_other() -> None:
    shown = set(re.findall(r"`((?:asyncrl|actors|staleness|weightsync)/[\w/]*)`", section(3)))
    there = {f"{path.parent.relative_to(ROOT)}/" for path in PRODUCT}
    assert shown == there, (sorted(shown - there), sorted(there - shown))


EXPORTED = {"Learner"}
"""Classes that the library exports under the name of what each is a face of."""


def test_no_two_classes_have_one_name() -> None:
    found = defaultdict(list)
    for path, name in classes():
        found[name].append(str(path.relative_to(ROOT)))
    several = {name: paths for name, paths in found.items() if len(paths) > 1}
    for name in EXPORTED:
        one, core = sorted(several.pop(name))
        assert one.startswith("asyncrl/library/") and not core.startswith("asyncrl/library/")
    assert not several


def test_no_two_files_have_one_name_unless_they_mean_the_same() -> None:
    found = defaultdict(list)
    for path in PRODUCT:
        if path.name not in {"__init__.py", "__main__.py"}:
            found[path.name].append(str(path.parent.relative_to(ROOT)))
    assert {name for name, folders in found.items() if len(folders) > 1} <= SAME_NAME, found


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.split(chr(10))[0]}"
        for path, line, text in docstrings()
        if QUESTIONS.match(text.strip())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_at_most_100_columns(page: Path) -> None:
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.lstrip().startswith("|"):
            assert len(line) <= COLUMNS, f"{page.name}:{number} has {len(line)} columns"


OF_THE_KERNEL = {"asyncrl/sandbox/forks.py", "asyncrl/runtime/processes/process.py"}


def test_numbers_are_read_from_text_by_one_function() -> None:
    """`\\d` and `isdigit` accept digits of every script, of which `int` accepts some."""
    for folder in ("asyncrl", "actors", "staleness", "weightsync"):
        for path in (ROOT / folder).rglob("*.py"):
            if str(path.relative_to(ROOT)) not in OF_THE_KERNEL:
                for word in (r"\d", ".isdigit(", "str.isdigit", ".isdecimal(", ".isnumeric("):
                    assert word not in path.read_text(), f"{path}: use asyncrl.words.whole"
