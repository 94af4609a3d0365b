"""Limits of what a process in the sandbox may use. Pure, but for `apply`."""

from __future__ import annotations

import resource

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Limits of one sandbox.

    `memory_bytes` of address space for each of its processes, beyond what the zygote had;
    `processes`, threads among them; `open_files` for each process; `file_bytes` for each file;
    `scratch_bytes` in its `/tmp` and `/dev/shm`, 0 for none; `cpu_s` seconds of a core for each
    process, 0 for no limit.
    """

    memory_bytes: int = 2**30
    processes: int = 32
    open_files: int = 128
    file_bytes: int = 2**26
    scratch_bytes: int = 2**26
    cpu_s: int = 0

    def rlimits(self, inherited_bytes: int) -> dict[int, int]:
        """The value of each limit of setrlimit(2), for a process that inherits so many bytes of
        address space.

        >>> Limits(memory_bytes=5, cpu_s=2).rlimits(10)[resource.RLIMIT_AS]
        15
        """
        cpu = {resource.RLIMIT_CPU: self.cpu_s} if self.cpu_s else {}
        return cpu | {
            resource.RLIMIT_AS: inherited_bytes + self.memory_bytes,
            resource.RLIMIT_NPROC: self.processes,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_FSIZE: self.file_bytes,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }

    def apply(self, inherited_bytes: int) -> None:
        """Limit this process, and so all that it starts. Raises OSError, and ValueError if it is
        limited to less already and may not have more."""
        for kind, value in self.rlimits(inherited_bytes).items():
            hard = resource.getrlimit(kind)[1]
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (most, most))
