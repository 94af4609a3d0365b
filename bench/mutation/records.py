"""Tests and seeds by the blocks of the product that they reach, and how long each takes: recorded
once in copies that mark their blocks, and kept under `.cache/mutants/`.

A record of a file of tests holds until that file changes. Changes of the product make it older, not
wrong: blocks have names (`mutation.blocks`). The simulation's record holds for one product.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from mutation.blocks import MODULE
from mutation.operators import Mutant
from mutation.trees import PACKAGES, ROOT, UNCOUNTED, digest

SEEDS = range(200)
UNRELATED = {
    "tests/simulation/test_planted.py",
    "tests/simulation/test_seeds.py",
    "tests/test_environments.py",
    "tests/test_house.py",
    "tests/test_project.py",
}
"""Tests of the source's text, and those that are the simulation, which has a score of its own."""


class Reached(msgspec.Struct, frozen=True):
    """The blocks that a test or a seed reached, by their places in `Record.names`."""

    seconds: float
    blocks: list[int]


class Record(msgspec.Struct, frozen=True):
    """A file of tests (or the simulation), and the product that it was recorded with."""

    source: str
    product: str
    names: list[str]
    reached: dict[str, Reached]

    @classmethod
    def of(cls, source: str, product: str, names: list[str], said: list[dict[str, Any]]) -> Record:
        """Words of a worker about each test, without those that failed or were skipped."""
        passed = [one for one in said if one["failed"] is None]
        used = sorted({block for one in passed for block in one["blocks"]})
        place = {block: at for at, block in enumerate(used)}
        return cls(
            source,
            product,
            [names[block] for block in used],
            {
                one["test"]: Reached(one["seconds"], [place[block] for block in one["blocks"]])
                for one in passed
            },
        )


def test_files(wanted: list[str]) -> list[str]:
    """The files of tests under these paths."""
    found: set[str] = set()
    for path in wanted:
        at = ROOT / path
        files = at.rglob("test_*.py") if at.is_dir() else [at]
        found |= {file.relative_to(ROOT).as_posix() for file in files}
    return sorted(found - UNRELATED)


class Records:
    """The records under a folder."""

    def __init__(self, folder: Path, product: str) -> None:
        self._folder, self._product = folder, product
        self._folder.mkdir(parents=True, exist_ok=True)
        self._tests: dict[str, dict[str, float]] = defaultdict(dict)
        self._seeds: dict[str, dict[str, float]] = defaultdict(dict)
        self.aged = 0
        self._importers = importers()

    def _path(self, source: str) -> Path:
        return self._folder / f"{source.replace('/', '__')}.json"

    def missing(self, tests: list[str]) -> list[str]:
        """The files of tests that have no record of their present text."""
        return [path for path in tests if not self._holds(path, digest([path]))]

    def simulation_missing(self) -> bool:
        """True where there is no record of the simulation with this product."""
        found = self._read("simulation")
        return found is None or found.product != self._product

    def _holds(self, path: str, source: str) -> bool:
        found = self._read(path)
        return found is not None and found.source == source

    def _read(self, path: str) -> Record | None:
        at = self._path(path)
        return msgspec.json.decode(at.read_bytes(), type=Record) if at.exists() else None

    def keep(self, path: str, names: list[str], said: list[dict[str, Any]]) -> None:
        """Keep what was recorded of a file of tests, or of `simulation`."""
        source = "" if path == "simulation" else digest([path])
        record = Record.of(source, self._product, names, said)
        self._path(path).write_bytes(msgspec.json.encode(record))

    def load(self, tests: list[str]) -> None:
        """Read the records of these files and of the simulation."""
        for path in [*tests, "simulation"]:
            if (record := self._read(path)) is None:
                continue
            self.aged += path != "simulation" and record.product != self._product
            kept = self._seeds if path == "simulation" else self._tests
            for name, reached in record.reached.items():
                for block in reached.blocks:
                    kept[record.names[block]][name] = reached.seconds

    def seeds(self, mutant: Mutant) -> dict[str, float]:
        """The seeds that reach a mutant, the quickest first, with the seconds that each takes."""
        return by_seconds(self._related(mutant, self._seeds))

    def tests(self, mutant: Mutant) -> dict[str, float]:
        """The tests that reach a mutant: those of its own folder first, then by seconds."""
        found = by_seconds(self._related(mutant, self._tests))
        mirror = mirrored(mutant.path)
        return dict(sorted(found.items(), key=lambda one: not one[0].startswith(mirror)))

    def _related(self, mutant: Mutant, kept: dict[str, dict[str, float]]) -> dict[str, float]:
        if mutant.block != MODULE:
            return kept.get(f"{mutant.path}::{mutant.block}", {})
        files = {mutant.path, *self._importers[mutant.path]}
        return {
            name: seconds
            for block, reached in kept.items()
            if block.partition("::")[0] in files
            for name, seconds in reached.items()
        }


def by_seconds(found: dict[str, float]) -> dict[str, float]:
    """The same, the quickest first."""
    return dict(sorted(found.items(), key=lambda one: (one[1], one[0])))


def mirrored(path: str) -> str:
    """The folder of tests that mirrors a file's: `tests/ipc/` of `asyncrl/ipc/link.py`."""
    parts = PurePosixPath(path).parts
    return f"tests/{parts[1] if parts[0] == 'asyncrl' else parts[0]}/"


def importers() -> dict[str, set[str]]:
    """The files of the product that import each file of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(UNCOUNTED):
                continue
            for module in imported(ast.parse(path.read_text())):
                for end in (".py", "/__init__.py"):
                    found[module.replace(".", "/") + end].add(name)
    return found


def imported(tree: ast.Module) -> set[str]:
    """The modules that a file imports, and the names in them, which may be modules."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{name.name}" for name in names)}
    return found
