"""Test files that `make test` leaves out (`tests/support/green.py`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import green
import pytest

FILES = {
    "pyproject.toml": "",
    "asyncrl/__init__.py": "",
    "asyncrl/used.py": "import asyncrl.behind\nfrom asyncrl.linked import deep\n",
    "linked/__init__.py": "",
    "linked/deep.py": "",
    "asyncrl/behind.py": "",
    "asyncrl/other.py": "",
    "asyncrl/table.json": "",
    "tests/unit/test_one.py": "def test():\n    from asyncrl import used\n",
    "tests/unit/test_two.py": "import helper\n",
    "tests/support/helper.py": "import subprocess\n",
}


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(green, "ROOT", tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "asyncrl/linked").symlink_to("../linked")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return green.Tree().keys()


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("asyncrl/behind.py", {"one", "two"}),
        ("linked/deep.py", {"one", "two"}),
        ("asyncrl/table.json", {"one", "two"}),
        ("asyncrl/other.py", {"two"}),
        ("tests/unit/test_one.py", {"one", "two"}),
        ("pyproject.toml", {"one", "two"}),
        ("tests/unit/test_two.py", {"two"}),
    ],
)
def test_what_a_file_depends_on_has_it_run_again(
    changed: str, again: set[str], keys: dict[str, str], tmp_path: Path
) -> None:
    """`test_two` starts processes by what helps it, and so depends on everything."""
    assert green.Tree().keys() == keys and len(keys) == 2
    with (tmp_path / changed).open("a") as file:
        file.write("\n")
    new = green.Tree().keys()
    assert {f"tests/unit/test_{name}.py" for name in again} == {
        name for name in keys if new[name] != keys[name]
    }
