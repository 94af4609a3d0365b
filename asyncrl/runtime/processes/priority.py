"""A low priority for a process that uses what others leave."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NICE = 10
"""Of a core that another process wants too, such a process has about a tenth: enough for a
new version to come into its engine meanwhile."""


def lower_priority() -> None:
    """Lower this process's priority, and that of what it starts. Linux may weigh sessions before
    processes (`sched_autogroup`), so its session's is lowered, too."""
    os.nice(NICE)
    with contextlib.suppress(OSError):  # there is none, or it is another's
        Path("/proc/self/autogroup").write_text(str(NICE))
