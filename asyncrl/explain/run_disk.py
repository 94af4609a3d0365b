"""The disk of a run, for views that change nothing: if it takes anything more, and the remedy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from asyncrl.files import PROBE_BYTES


def takes_no_more(folder: Path) -> str:
    """Words on a disk on which nothing can be written to a folder now, with what to do; empty if
    something can, or if the system does not say. A quota is not known without a write."""
    try:
        free, found = shutil.disk_usage(folder).free, os.statvfs(folder)
    except OSError:
        return ""
    if found.f_flag & os.ST_RDONLY:
        return f"the disk of {folder} is read-only: mount it so that it is writable"
    if free < PROBE_BYTES:
        return f"the disk of {folder} is full: make room"
    if found.f_files and not found.f_favail:
        return f"the disk of {folder} is full, as it takes no further file (df -i): remove some"
    return ""
