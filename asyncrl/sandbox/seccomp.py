"""System calls that nothing in the sandbox may make: pure, but for `install`.

They reach what neither namespaces nor limits cover: memory that no limit counts
(memfd, System V, message queues), sockets that no network namespace holds (vsock), keys of the
kernel, other processes' memory, mounts and namespaces of its own, and large parts of the kernel
that no verifier needs (io_uring, bpf, perf). All other calls stay allowed.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from errno import EAFNOSUPPORT, ENOSYS, EPERM

from asyncrl.sandbox import syscalls

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""Numbers from here on are another table of x86_64."""
_NEW = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsmount": 432,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
"""Denied calls that have one number on all machines."""
_DENIED = {
    "x86_64": {
        "shmget": 29,
        "semget": 64,
        "msgget": 68,
        "ptrace": 101,
        "personality": 135,
        "pivot_root": 155,
        "mount": 165,
        "umount2": 166,
        "mq_open": 240,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "memfd_create": 319,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": {
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "personality": 92,
        "unshare": 97,
        "ptrace": 117,
        "mq_open": 180,
        "msgget": 186,
        "semget": 190,
        "shmget": 194,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "perf_event_open": 241,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "memfd_create": 279,
        "bpf": 280,
        "userfaultfd": 282,
    },
}
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_SOCKET = {"x86_64": 41, "aarch64": 198}
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_NAMESPACES = 0x7E020000
"""Flags of clone(2) that ask for namespaces."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16
"""Offsets of the call's number, its machine and its first argument (seccomp(2))."""
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def program(machine: str) -> bytes:
    """The filter for a kind of machine, as instructions of BPF: 8 bytes each. Raises OSError for a
    machine whose numbers are not known.

    >>> len(program("x86_64")) % 8
    0
    """
    if machine not in _ARCHITECTURE:
        raise OSError(f"the numbers of system calls are not known on {machine}")
    return b"".join(
        struct.pack("=HBBI", code, yes, no, value)
        for code, yes, no, value in _instructions(machine)
    )


def _instructions(machine: str) -> Iterator[tuple[int, int, int, int]]:
    """Code, steps to skip if the condition holds and if not, value."""
    yield _LOAD, 0, 0, _MACHINE
    yield _EQUAL, 1, 0, _ARCHITECTURE[machine]
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    if machine == "x86_64":
        yield _AT_LEAST, 0, 1, _X32
        yield _RETURN, 0, 0, _ERRNO | EPERM
    yield _EQUAL, 0, 1, _CLONE3  # its flags cannot be read; the C library then uses clone
    yield _RETURN, 0, 0, _ERRNO | ENOSYS
    for number in sorted({**_DENIED[machine], **_NEW}.values()):
        yield _EQUAL, 0, 1, number
        yield _RETURN, 0, 0, _ERRNO | EPERM
    yield _EQUAL, 0, 4, _CLONE[machine]
    yield _LOAD, 0, 0, _ARGUMENT
    yield _ANY_BIT, 0, 1, _NAMESPACES
    yield _RETURN, 0, 0, _ERRNO | EPERM
    yield _RETURN, 0, 0, _ALLOW
    yield _EQUAL, 0, len(_FAMILIES) + 2, _SOCKET[machine]
    yield _LOAD, 0, 0, _ARGUMENT
    for left, family in zip(range(len(_FAMILIES), 0, -1), _FAMILIES, strict=True):
        yield _EQUAL, left, 0, family
    yield _RETURN, 0, 0, _ERRNO | EAFNOSUPPORT
    yield _RETURN, 0, 0, _ALLOW


def install(code: bytes) -> None:
    """Install a `program` for this process and all that it starts, irrevocably. The process must
    have set no-new-privileges before. Raises OSError."""
    syscalls.filter_calls(code)
