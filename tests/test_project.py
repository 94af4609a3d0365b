"""What the project says of itself agrees: the pins with the ranges, the README with the code."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from asyncrl.config import VARIABLES, load

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = [
    line
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
]
PINS = {name: pin for name, _, pin in (line.partition("==") for line in LINES)}
DIRECT = [
    Requirement(text)
    for text in (
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["dev"],
        *PROJECT["build-system"]["requires"],
    )
]


def test_the_lock_has_exact_public_versions_and_nothing_for_one_kind_of_machine() -> None:
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line), line
        assert not line.startswith(("nvidia", "triton")), line
    assert len(PINS) == len(LINES)


def test_every_direct_dependency_is_pinned_within_its_range_and_installed() -> None:
    for requirement in DIRECT:
        pin = PINS[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), requirement
        assert version(requirement.name).partition("+")[0] == pin, (
            f"{requirement.name}: run make lint, which installs the lock"
        )


def test_the_readme_names_every_variable_and_no_other() -> None:
    rows = re.findall(
        r"^\| `(ASYNCRL_[A-Z_]+)` \| `([a-z_.]+)` \|",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    assert dict(rows) == VARIABLES


def test_the_bundled_main_job_is_a_configuration() -> None:
    load(ROOT / "run.toml", (), {})


def test_the_pages_link_to_what_is_there() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_a_folder_of_real_runs_or_servers_goes_to_one_worker_and_other_files_anywhere(
    pytestconfig: pytest.Config,
) -> None:
    settings = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))

    def unit(file: Path) -> str:
        return settings.ByFile._split_scope(None, f"{file.relative_to(ROOT)}::test_it[a/b::c]")

    files = sorted((ROOT / "tests").rglob("test_*.py"))
    real = [file for file in files if file.parent.name in ("runs", "sglang")]
    assert {unit(file) for file in real} == {"runs", "sglang"}
    others = [unit(file) for file in files if file not in real]
    assert len(set(others)) == len(others) > 50
