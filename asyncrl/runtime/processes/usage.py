"""Processor and memory that a process and all that it started use, as the kernel tells. Linux
alone."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

PAGE = os.sysconf("SC_PAGE_SIZE")
PROC = Path("/proc")


class Used(msgspec.Struct, frozen=True):
    """Processor and memory of processes: seconds that they ran, and `waited_s` for which they
    wanted a core and had none (None: the kernel does not say). `wants`: one of them runs, or wants
    a core or a disk, now."""

    cpu_s: float
    waited_s: float | None
    bytes: int
    wants: bool


def used_by(pid: int, proc: Path = PROC) -> Used | None:
    """The use of the process and its descendants; those that have ended are left out. None where
    it has ended, or cannot be seen."""
    cpu_ns = waited_ns = pages = 0
    wants, seen, left = False, False, [pid]
    while left:
        process = proc / str(left.pop())
        try:
            pages += int((process / "statm").read_text().split()[1])
            for task in (process / "task").iterdir():
                state = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                wants = wants or state in "RD"
                ran, waited = map(int, (task / "schedstat").read_text().split()[:2])
                cpu_ns, waited_ns = cpu_ns + ran, waited_ns + waited
                left += map(int, (task / "children").read_text().split())
            seen = True
        except (OSError, ValueError, IndexError):  # it ended meanwhile, or the kernel has no such
            continue
    if not seen:
        return None
    waited_s = waited_ns / 1e9 if waited_ns else None  # nothing waits for no nanosecond
    return Used(cpu_ns / 1e9, waited_s, pages * PAGE, wants)
