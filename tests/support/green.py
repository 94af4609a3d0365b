"""Test files that `make test` leaves out, because they passed on the same contents of all that
they depend on (`--skip-green`; CI never does).

What a file depends on is its own imports and those of what it imports, as far as they lie in this
repository, found in the syntax trees; a module of a process, named in a string, counts, and so does
each file beside a module that is no module. A file that starts processes or reads the repository
(`AT_LARGE`) depends on every file of it. Besides: the locks, the environments that were made, and
Python.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = ("", "tests/support/", "tests/actors/", "bench/")
"""Folders whose modules are imported by their names; a test's own folder is another one."""
AT_LARGE = re.compile(
    r"__file__|subprocess|Popen|sys\.executable|spawn|fork|multiprocessing|mark\.processes|getcwd"
)
COMMON = ("pyproject.toml", "Makefile", "tests/conftest.py", "tests/support/green.py")
KEPT = "asyncrl/green"
NAMED = re.compile(r"(actors|asyncrl)(\.\w+)+")


class Tree:
    """The files of the repository as they are now."""

    def __init__(self) -> None:
        command = ["git", "ls-files", "-co", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
        self._texts = {name: (ROOT / name).read_bytes() for name in names}
        self._links = {
            f"{name}/": f"{(ROOT / name).resolve().relative_to(ROOT)}/"
            for name in listed.stdout.splitlines()
            if (ROOT / name).is_symlink()
        }
        """Packages that are links to folders of the top level, and these."""
        self._modules = {name for name in names if name.endswith(".py")}
        self._found: dict[str, set[str]] = {}

    def keys(self) -> dict[str, str]:
        """A hash of all that each test file depends on."""
        tests = {name for name in self._modules if PurePath(name).name.startswith("test_")}
        return {name: self._hash(self._inputs(name)) for name in tests}

    def _inputs(self, test: str) -> set[str]:
        conftests = {f"{folder}/conftest.py" for folder in map(str, PurePath(test).parents)}
        reached, new = set[str](), {test, *(conftests & self._modules)}
        while new:
            reached |= new
            new = set().union(*(self._imported(name) for name in new)) - reached
        helpers = {name for name in reached if name.startswith("tests/")} - {*COMMON}
        if any(AT_LARGE.search(self._texts[name].decode()) for name in helpers):
            return {*self._texts}
        folders = {str(PurePath(name).parent) for name in reached}
        return reached | {
            name
            for name in self._texts
            if name not in self._modules and str(PurePath(name).parent) in folders - {"."}
        }

    def _imported(self, name: str) -> set[str]:
        """The files that a module imports, or names."""
        if name not in self._found:
            words = set[str]()
            for node in ast.walk(ast.parse(self._texts[name])):
                match node:
                    case ast.Import():
                        words |= {alias.name for alias in node.names}
                    case ast.ImportFrom(module=str(module), level=0):
                        words |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
                    case ast.ImportFrom(module=module, level=level):
                        folder = ".".join(PurePath(name).parts[:-level])
                        base = f"{folder}.{module}" if module else folder
                        words |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
                    case ast.Constant(value=str(value)) if NAMED.fullmatch(value):
                        words.add(value)
            self._found[name] = set().union(*(self._of(word, name) for word in words))
        return self._found[name]

    def _of(self, module: str, importer: str) -> set[str]:
        """The files of a module of this repository, its packages included."""
        parts, found = module.split("."), set[str]()
        for root in (*ROOTS, f"{PurePath(importer).parent}/"):
            for end in range(1, len(parts) + 1):
                path = self._real(root + "/".join(parts[:end]))
                found |= {f"{path}.py", f"{path}/__init__.py"} & self._modules
        return found

    def _real(self, path: str) -> str:
        """The path as git knows it: behind a link, that of the folder."""
        for link, folder in self._links.items():
            if f"{path}/".startswith(link):
                return f"{folder}{path[len(link) :]}".rstrip("/")
        return path

    def _hash(self, names: set[str]) -> str:
        key = hashlib.sha256(self._common)
        for name in sorted(names):
            key.update(self._hashes[name])
        return key.hexdigest()

    @cached_property
    def _hashes(self) -> dict[str, bytes]:
        return {
            name: hashlib.sha256(name.encode() + b"\0" + text).digest()
            for name, text in self._texts.items()
        }

    @cached_property
    def _common(self) -> bytes:
        names = [name for name in self._texts if name in COMMON or name.endswith(".lock")]
        made = sorted(path.parent.name for path in ROOT.glob(".venv*/.ready"))
        return repr((sys.version, made, [self._hashes[name] for name in sorted(names)])).encode()


class Green:
    """A plugin of pytest's main process: which files are left out, and which were green."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._which = f"{config.option.markexpr}; {config.option.keyword}; {config.args}"
        self._keys = Tree().keys()
        known = config.cache.get(KEPT, {})  # type: ignore[union-attr]
        self._known = {
            name: key for name, key in known.items() if self._keys.get(name.split("; ")[0]) == key
        }
        self.skipped = [name for name in self._keys if f"{name}; {self._which}" in self._known]
        self._failed: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker which files it leaves out."""
        node.workerinput["skipped"] = self.skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid.partition("::")[0])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid.partition("::")[0])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Keep which were green, where all were run."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.skipped:
            session.exitstatus = exitstatus = pytest.ExitCode.OK
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            green = {name: key for name, key in self._keys.items() if name not in self._failed}
            mine = {f"{name}; {self._which}": key for name, key in green.items()}
            self._config.cache.set(KEPT, self._known | mine)  # type: ignore[union-attr]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(
            f"{len(self.skipped)} of {len(self._keys)} test files passed before on the same "
            "contents, and were left out; `make test FRESH=1` runs all"
        )
