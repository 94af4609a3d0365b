"""System calls for which Python has no function. Each raises OSError with the call's name.

Invariant: no decision is made here. None needs a privilege: a process may always give up what it
has, and a user namespace of its own gives it the right to do so to its mounts and network.
"""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID = 0x1, 0x2
_CAPABILITY_VERSION = 0x20080522
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def call(name: str, number: int, *arguments: object) -> int:
    """The result of the system call `number`."""
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    return _checked(name, result)


def unshare(flags: int) -> None:
    """Enter new namespaces; children forked from now on enter a new process namespace."""
    _checked("unshare", _libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace of `descriptor`; of a process namespace, its children do."""
    _checked("setns", _libc.setns(descriptor, kind))


def prctl(option: int, value: int) -> None:
    """Change one thing about this process, of those with one argument."""
    _checked("prctl", _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def filter_calls(code: bytes) -> None:
    """Filter all system calls from now on by a program of BPF, 8 bytes an instruction."""
    program = _Program(len(code) // 8, code)
    _checked(
        "seccomp",
        _libc.prctl(
            _PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), 0, 0
        ),
    )


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount, bind, or change how mounts propagate."""
    encoded = [text.encode() or None for text in (source, target, kind)]
    try:
        _checked("mount", _libc.mount(*encoded, ctypes.c_ulong(flags), options.encode() or None))
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({target})") from None


def close_mount(target: str, *, recursive: bool) -> None:
    """Make a mount read-only and without setuid; `recursive`: those below it too."""
    attributes = _MountAttributes(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    call(
        "mount_setattr",
        _MOUNT_SETATTR,
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )


def pivot_root(new: str, old: str) -> None:
    """Make the mount `new` the root, and move the old root to `old`."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root is not known on {platform.machine()}")
    call("pivot_root", number, new.encode(), old.encode())


def detach(target: str) -> None:
    """Detach a mount, and all below it, from the tree."""
    _checked("umount2", _libc.umount2(target.encode(), MNT_DETACH))


def drop_capabilities() -> None:
    """Drop all capabilities, in every namespace."""
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _checked("capset", _libc.capset(head, (ctypes.c_uint32 * 6)()))


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
