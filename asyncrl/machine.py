"""What this machine lends this process. Invariant: it is asked in one place, so that no two roles count cores differently."""

from __future__ import annotations

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cores(quota: Path = QUOTA) -> int:
    """Cores this process may use: its affinity, cut to a container's quota where there is one. At least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if limit == "max" else max(1, min(cores, math.floor(int(limit) / int(period))))
