"""The share of this machine that this process has. Invariant: it is measured in one place, so that
all roles count cores and memory and choose ports in the same way."""

from __future__ import annotations

import ctypes
import math
import os
import random
import socket
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")
MEMORY, MEMORY_LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
MEMORY_USED, MEMORY_KINDS = "memory.current", "memory.stat"
"""Files beside the limit."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST_PORT = 20_000
"""Ports below it belong to services."""


def available_cores(quota: Path = QUOTA) -> int:
    """Cores this process may use: its affinity, cut to a container's quota, if any. At
    least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if limit == "max" else max(1, min(cores, math.floor(int(limit) / int(period))))


def memory_bytes(memory: Path = MEMORY, limit: Path = MEMORY_LIMIT) -> int:
    """Bytes of memory that processes here may have: the machine's, or a container's limit if
    that is less; 0 if neither is known."""
    try:
        text = memory.read_text()
        total = 1024 * int(text.partition("MemTotal:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        total = 0
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):  # no container, or "max"
        return total
    return min(total, allowed) if total else allowed


def free_bytes(memory: Path = MEMORY, limit: Path = MEMORY_LIMIT) -> int:
    """Bytes of memory that are free for processes here now: the machine's, or what is left of a
    container's limit if that is less. Files that the kernel may drop count as free. 2**62 if
    nothing is known."""
    left = [_field(memory, "MemAvailable:", 1024)]
    try:
        allowed, used = int(limit.read_text()), int(limit.with_name(MEMORY_USED).read_text())
        left.append(allowed - used + (_field(limit.with_name(MEMORY_KINDS), "inactive_file") or 0))
    except (OSError, ValueError):  # no container, or "max"
        pass
    return max(0, min((found for found in left if found is not None), default=2**62))


def _field(file: Path, name: str, unit: int = 1) -> int | None:
    """A number behind its name in a file of the kernel; None if it is not there."""
    try:
        return unit * int(file.read_text().partition(name)[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None


def gpus_here() -> int:
    """GPUs that this process may use, by their driver, without importing torch."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        known = not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count))
    except OSError:
        return 0
    return count.value if known else 0


def free_port(host: str = "127.0.0.1", ephemeral: Path = EPHEMERAL) -> int:
    """A free TCP port of this host, for a process that listens on it later. It is outside of the
    range that the system gives to connections, one of which could have it by then; if that range
    is everything, it is any port."""
    first = int(ephemeral.read_text().split()[0])
    for port in random.SystemRandom().sample(
        range(LOWEST_PORT, max(first, LOWEST_PORT)), k=min(64, max(0, first - LOWEST_PORT))
    ):
        try:
            with socket.create_server((host, port)):
                return port
        except OSError:
            continue
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])
