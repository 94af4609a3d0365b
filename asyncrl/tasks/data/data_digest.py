"""A digest of the data at a path, by which a resume, and another machine, notice other data."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from asyncrl.config.paths import is_hub_name
from asyncrl.files import open_regular
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.data_files import data_files
from asyncrl.tasks.data.hub_rows import HubRows

WHOLE = 2**30
"""Bytes up to which a file is read to its end."""
PIECES, PIECE = 4096, 2**16
"""Pieces of a larger one that are read, evenly spread, and their bytes."""


def data_digest(path: str) -> str:
    """SHA-256 of the files of a path, in hex; `none` if one cannot be read. A file beyond WHOLE
    goes in by its size and PIECES of it."""
    try:
        if is_hub_name(path):
            return HubRows(path).digest
        digests = [_of_file(file) for file in data_files(path).paths]
    except (OSError, TaskError):
        return "none"
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _of_file(path: Path) -> str:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        found = hashlib.sha256(str(size).encode())
        for piece in range(PIECES):
            file.seek((size - PIECE) * piece // (PIECES - 1))
            found.update(file.read(PIECE))
        return found.hexdigest()
