"""A copy of the checkout with a Python of its own, so that a mutant is nobody else's. The copy's
Python finds the copy's product, also where a process was started without the environment.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mutation.blocks import MARKS, MODULE, marked
from mutation.operators import Mutant

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "asyncrl", "staleness", "weightsync")
UNCOUNTED = ("asyncrl/simulation/",)
"""Files that test the product, and are no part of it."""


def product() -> list[str]:
    """The files whose mutants count."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return [name for name in names if not name.startswith(UNCOUNTED)]


def digest(paths: list[str]) -> str:
    """A digest of the contents of these files of the checkout."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.encode() + b"\0" + (ROOT / path).read_bytes())
    return found.hexdigest()[:16]


class Tree:
    """A copy of the checkout at `root`, with `python`."""

    def __init__(self, root: Path) -> None:
        self.root = root / "tree"
        self.python = root / "venv" / "bin" / "python"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (source := ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, self.root / name)
        venv.create(root / "venv", symlinks=True)
        site = next((root / "venv" / "lib").glob("python*/site-packages"))
        (site / "copy.pth").write_text(f"{self.root}\n{sysconfig.get_path('purelib')}\n")

    def mark(self) -> tuple[list[str], Path]:
        """Have every block of the product mark that it was reached. Returns the names of the
        blocks (`path::block`) in the order of their marks, and the file of the marks."""
        names: list[str] = []
        for path in product():
            text, blocks = marked((self.root / path).read_text(), len(names))
            (self.root / path).write_text(text)
            names += [f"{path}::{block}" for block in blocks if block != MODULE]
        marks = self.root / "reached_blocks.bin"
        marks.write_bytes(bytes(len(names)))
        (self.root / "reached_blocks.py").write_text(MARKS.format(path=str(marks), size=len(names)))
        return names, marks

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The copy has this mutant inside the block."""
        path = self.root / mutant.path
        source = path.read_text()
        try:
            self._write(path, mutant.applied(source))
            yield
        finally:
            self._write(path, source)

    def _write(self, path: Path, text: str) -> None:
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # it is told from the source by seconds and size alone
        path.write_text(text)
