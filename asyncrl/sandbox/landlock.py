"""Landlock: the parts of file system and network that a process may use, besides other permissions.

It is the second lock on files: the first is that hardly any are there (`view.py`). A kernel has a
version of it, and each version knows more rights. A right that the kernel knows and that is not
granted is denied.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Mapping
from errno import ENOSYS, EOPNOTSUPP
from pathlib import Path

from asyncrl.sandbox import syscalls

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
READ = _EXECUTE | _READ_FILE | _READ_FOLDER
"""Rights to read and to execute."""
DEVICE = _READ_FILE | _WRITE_FILE
"""Rights to read and write one file."""
_OF_FILES = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL
"""Rights that a file can have, and not a folder alone."""


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scopes")]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def handled(version: int) -> tuple[int, int, int]:
    """All rights that a kernel with this version can deny: of files, of the network, and of
    reaching out of the sandbox by a signal or an abstract socket.

    >>> [f"{files:b}".count("1") for files, _, _ in map(handled, (1, 2, 3, 5))]
    [13, 14, 15, 16]
    """
    files = (1 << 13) - 1
    for first, right in ((2, 1 << 13), (3, _TRUNCATE), (5, _IOCTL)):
        files |= right if version >= first else 0
    return files, 3 if version >= 4 else 0, 3 if version >= 6 else 0


def version() -> int:
    """The version that this kernel has, from 1 on; 0 if it has none. Raises OSError."""
    try:
        return syscalls.call(
            "landlock_create_ruleset", _CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)
        )
    except OSError as error:
        if error.errno in (ENOSYS, EOPNOTSUPP):
            return 0
        raise


def ruleset(abi: int, paths: Mapping[str, int], folders: Collection[str]) -> int:
    """A descriptor of rules: these rights beneath `paths`, everything beneath `folders`, and
    nothing else. `abi` is the kernel's version. Raises OSError."""
    files, network, scopes = handled(abi)
    rules = {**paths, **dict.fromkeys(folders, files)}
    attributes = _Ruleset(files, network, scopes)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    descriptor = syscalls.call(
        "landlock_create_ruleset",
        _CREATE,
        ctypes.byref(attributes),
        ctypes.c_size_t(size),
        ctypes.c_uint32(0),
    )
    for path, rights in rules.items():
        _add(descriptor, path, rights & files)
    return descriptor


def restrict(rules: int) -> None:
    """Restrict this process, and all that it starts, to a `ruleset`. The process must have set
    no-new-privileges before. Raises OSError."""
    syscalls.call("landlock_restrict_self", _RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))


def _add(descriptor: int, path: str, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _Beneath(rights if Path(path).is_dir() else rights & _OF_FILES, parent)
        syscalls.call(
            "landlock_add_rule",
            _ADD,
            ctypes.c_int(descriptor),
            ctypes.c_int(_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(parent)
