"""Code of a notebook in a run's directory, as a copy of the run has it. Invariant: it is copied as
text, and imported by nothing here: a resume of the copy is told it again (`library/kept_code.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

from asyncrl.runtime.run_dir import CODE

CODE_FILE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.(?:py|json)")
"""Names of files that `asyncrl.train` writes there."""


def code_files(run: Path) -> list[str]:
    """The names of the files of code in a run's directory."""
    folder = run / CODE
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return sorted(path.name for path in found if CODE_FILE.fullmatch(path.name))
