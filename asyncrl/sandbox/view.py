"""The files that the sandbox has: Python, the system's libraries, and files that were open.
Invariant: nothing else is there, under any name.

Nothing in it can be written, and no home directory, run or key is in it: a file that a process
cannot name it cannot read, change the mode of, or connect to. So a directory that is on PYTHONPATH
is not in it either, as it may hold anything; what a verifier imports it imports before the sandbox
closes.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from asyncrl.sandbox import syscalls

SHELF = "/scratch"
OWN = f"{SHELF}/own"
"""The only place that can be written, in memory, with two directories that are empty at first."""
SCRATCH = f"{OWN}/tmp"
"""`/tmp` leads there."""
SHARED = f"{OWN}/shm"
"""`/dev/shm` leads there: the semaphores and the shared memory of `multiprocessing`."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/alternatives",
)
_PYTHON = ("stdlib", "platstdlib", "purelib", "platlib")
_STAGES = ("/tmp", "/var/tmp", "/run", "/mnt")
"""Directories on which the tree is put together, unseen by other processes."""


class View(msgspec.Struct, frozen=True):
    """Everything that can be read: `paths` (files, and folders with all below them), symbolic
    `links`, and `files`, both by their path inside."""

    paths: tuple[str, ...]
    links: dict[str, str]
    files: dict[str, str]

    @property
    def readable(self) -> list[str]:
        """All paths inside that can be read, but for links."""
        return [*self.paths, *self.files]


def python_view(files: dict[str, str]) -> View:
    """The view that this Python needs, with `files` by their path inside."""
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    return system_view([*python, *(sysconfig.get_path(name) for name in _PYTHON)], files)


def system_view(paths: Iterable[str], files: dict[str, str]) -> View:
    """The view of the system's programs and libraries, of those of `paths` that exist, and of
    `files` by their path inside."""
    links = {path: str(Path(path).readlink()) for path in _SYSTEM if Path(path).is_symlink()}
    wanted = {*paths, *(path for path in _SYSTEM if path not in links)}
    there = sorted(path for path in wanted if Path(path).exists() and path != "/")
    folders = {path: to for path, to in links.items() if Path(path).is_dir()}
    return View(tuple(outermost(there)), folders, files)


def outermost(paths: Iterable[str]) -> Iterator[str]:
    """Those of sorted absolute paths that lie beneath no other.

    >>> list(outermost(["/a", "/a/b", "/ab"]))
    ['/a', '/ab']
    """
    last = ""
    for path in sorted(paths, key=lambda path: Path(path).parts):
        if not last or not Path(path).is_relative_to(last):
            last = path
            yield path


def enter(view: View) -> None:
    """Restrict the files that this process sees to the view. The process must be alone in its mount
    namespace, and may mount there. Raises OSError."""
    os.umask(0o022)  # so that workers of any user can enter directories
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    stage = next(path for path in _STAGES if Path(path).is_dir())
    _memory(stage, "mode=0755")
    Path(stage, "old").mkdir()
    Path(stage, "new").mkdir()
    syscalls.pivot_root(stage, f"{stage}/old")
    os.chdir("/")
    _memory("/new", "mode=0755")
    for path in (*view.paths, *(device for device in DEVICES if Path(f"/old{device}").exists())):
        _bind(path, path)
    for inside, path in view.files.items():
        _bind(path, inside)
    for inside, to in view.links.items():
        Path(f"/new{inside}").parent.mkdir(parents=True, exist_ok=True)
        Path(f"/new{inside}").symlink_to(to)
    for folder in (SCRATCH, SHARED):  # empty, and read-only where nothing may be written
        Path(f"/new{folder}").mkdir(parents=True)
    Path("/new/dev").mkdir(exist_ok=True)
    Path("/new/dev/shm").symlink_to(SHARED)
    if not Path("/new/tmp").exists():  # else Python is there
        Path("/new/tmp").symlink_to(SCRATCH)
    os.chdir("/new")
    syscalls.pivot_root(".", ".")
    syscalls.detach(".")
    os.chdir("/")
    syscalls.close_mount("/", recursive=False)


def scratch(size: int) -> None:
    """Mount the two directories, of `size` bytes together, in this process's own mount
    namespace."""
    _memory(OWN, f"mode=0700,size={size},nr_inodes=4096")
    for folder in (SCRATCH, SHARED):
        Path(folder).mkdir(mode=0o700)


def _bind(path: str, inside: str) -> None:
    """Show `path` of the old root as the path `inside` of the new one."""
    source, target = Path(f"/old{path}"), Path(f"/new{inside}")
    target.parent.mkdir(parents=True, exist_ok=True)
    real = _beneath_old(source)
    if real.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    syscalls.mount(str(real), str(target), "", syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.close_mount(str(target), recursive=True)


def _beneath_old(path: Path) -> Path:
    """Resolve the links of a path, each from the old root on."""
    seen, rest = Path("/old"), list(path.relative_to("/old").parts)
    for _ in range(4096):
        if not rest:
            return seen
        step = seen / rest.pop(0)
        if step.is_symlink():
            to = step.readlink()
            rest[:0] = to.relative_to("/").parts if to.is_absolute() else to.parts
            seen = Path("/old") if to.is_absolute() else seen
        else:
            seen = seen.parent if step.name == ".." else step
    raise OSError(f"{path} has links without end")


def _memory(target: str, options: str) -> None:
    syscalls.mount("tmpfs", target, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
