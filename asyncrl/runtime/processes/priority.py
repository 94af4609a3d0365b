"""A low priority, for a process that uses the time that others leave."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NICE = 10
"""Such a process gets about a tenth of a core that another process uses too: enough to receive a
new version into its engine meanwhile."""


def lower_priority() -> None:
    """Lower this process's priority, and that of what it starts. Linux may weigh sessions before
    processes (`sched_autogroup`), so its session's is lowered, too."""
    os.nice(NICE)
    with contextlib.suppress(OSError):  # there is none, or it belongs to another user
        Path("/proc/self/autogroup").write_text(str(NICE))
