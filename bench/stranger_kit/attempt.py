"""One attempt: a command line of `asyncrl` on files that a stranger has made, in a fork of a
process that has imported everything, and all that it left behind.

Invariant: an attempt ends, and no process of it lives when the next one begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import importlib
import io
import os
import re
import resource
import select
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

RAISED = 70
"""The status of an attempt in which an exception left `main`."""
REFUSED = frozenset({2})
RUNS = frozenset({0})
EITHER = RUNS | REFUSED
LOOKED = frozenset({0, 1, 2})
"""Statuses of a verb that looks at a run."""
SECONDS = 60.0
"""Seconds that an attempt may take; a check of the slowest good input takes 5."""
MEMORY = 12 * 2**30
"""Bytes of address space of an attempt: a read without a bound ends there."""
LEFT_S = 5.0
"""Seconds in which what an attempt has started must be gone."""
SMALL = 2**20
STREAMS = "said.out", "said.err"
_SUBREAPER, _CAPBSET_DROP = 36, 24
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2
_TRACE = re.compile(
    r"Traceback \(most recent call last\)|Exception Group|--- Logging error ---|panicked at"
)

Tree = dict[str, tuple[object, ...]]


class Said(NamedTuple):
    """The end of an attempt: its status (None: it did not end in time), and what it printed."""

    status: int | None
    out: str
    err: str


class Case(NamedTuple):
    """A command line with an independent idea of the right answer. `folder` has all its files;
    what changes in it below `may` is no fault. `says` is a pattern that the sentence of a refusal
    must have, `witness` tells a difference in what a good answer said. Without `privileged` the
    attempt may not read what its mode forbids, also as root."""

    argv: tuple[str, ...]
    right: frozenset[int] = REFUSED
    says: str = ""
    witness: Callable[[Said], str] | None = None
    may: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    privileged: bool = True
    architecture: bool = False
    """True to make the model without weights, in a process that imports torch."""
    seconds: float = SECONDS


class Found(NamedTuple):
    """Faults of one attempt, in words, by kind."""

    tracebacks: list[str]
    hangs: list[str]
    differences: list[str]
    processes: list[str]
    files: list[str]


def prepare(*, light: bool = False) -> None:
    """Import what a check imports; with `light` without what chat templates need, which makes each
    fork slower."""
    of_chat = () if light else ("transformers.models.auto.tokenization_auto",)
    for module in (
        "asyncrl.cli",
        "asyncrl.library.train",
        "asyncrl.launch.model_directories",
        "asyncrl.launch.stored_copy",
        "asyncrl.launch.first_run",
        "asyncrl.explain.why",
        "asyncrl.explain.views.compare",
        "asyncrl.explain.views.report",
        "asyncrl.explain.views.rollout_records",
        "asyncrl.explain.views.record_files",
        "asyncrl.explain.views.top",
        "asyncrl.sizing.sizing_command",
        "asyncrl.tasks.text",
        "obstore.store",
        *of_chat,
    ):
        with contextlib.suppress(ModuleNotFoundError):  # an extra that is not installed
            importlib.import_module(module)
    cli = importlib.import_module("asyncrl.cli")
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(["check"])  # it keeps what it knows of the machine and of types


def adopt() -> None:
    """Be a process that attempts are forked from: it adopts what they leave, and may have no other
    children."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    gc.collect()
    gc.freeze()


def attempt(case: Case, folder: Path) -> tuple[Said, Found]:
    """Try a case, whose files are in `folder`, and look at what it left."""
    _furnish(folder)
    before = tree(folder)
    status = _forked([case], [folder])[0]
    left = _left()
    changed = [path for path in _changed(before, tree(folder)) if not path.startswith(case.may)]
    said = _said(status, folder)
    return said, _judged(case, said, left, changed)


def attempts(cases: Sequence[Case], folders: Sequence[Path]) -> list[Found]:
    """Try cases in one process, one after another: cheaper, for those that are refused at once.
    What is left by one of them is counted for the first. They have a parent in common."""
    for folder in folders:
        _furnish(folder)
    before = tree(folders[0].parent)
    statuses = _forked(cases, folders)
    left, changed = _left(), _changed(before, tree(folders[0].parent))
    return [
        _judged(case, _said(status, folder), *(([], []) if number else (left, changed)))
        for number, (case, folder, status) in enumerate(zip(cases, folders, statuses, strict=True))
    ]


def _furnish(folder: Path) -> None:
    for name in ("home", "tmp", "cwd"):
        (folder / name).mkdir(exist_ok=True)


def _changed(before: Tree, after: Tree) -> list[str]:
    """Paths that were made, changed or removed."""
    return [
        path
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
        and Path(path).name not in STREAMS
        and not (path in before and stat.S_ISDIR(before[path][0]))  # type: ignore[arg-type]
    ]


def _said(status: int | None, folder: Path) -> Said:
    words = []
    for name in STREAMS:
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
            words.append(file.read(SMALL).decode(errors="replace"))
    return Said(status, *(words or ("", "")))


def _judged(case: Case, said: Said, left: list[str], changed: list[str]) -> Found:
    found = Found([], [], [], left, changed)
    text = said.out + said.err
    if said.status == RAISED or _TRACE.search(text) or (said.status or 0) < 0:
        found.tracebacks.append(f"status {said.status}: {text.strip()[-1500:]}")
    elif said.status is None:
        found.hangs.append(f"no end in {case.seconds:g} s: {text.strip()[-300:]}")
    elif said.status not in case.right:
        found.differences.append(
            f"status {said.status} and not {sorted(case.right)}: {_last(text)}"
        )
    elif said.status == 2:
        sentence = said.err.strip()
        if not sentence.startswith("usage: ") and not all(
            line.startswith("asyncrl: ") for line in sentence.split("\n")
        ):
            found.differences.append(f"no one sentence: {sentence[-500:]}")
        elif case.says and not re.search(case.says, sentence):
            found.differences.append(f"names no {case.says!r}: {sentence[-500:]}")
    elif case.witness is not None and (difference := case.witness(said)):
        found.differences.append(difference)
    return found


def _last(text: str) -> str:
    return text.strip()[-400:]


def _forked(cases: Sequence[Case], folders: Sequence[Path]) -> list[int | None]:
    """Run them in a process of its own session. The statuses: None for one that did not end."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _child(cases, folders, writing)
    os.close(writing)
    statuses = list[int | None]()
    with os.fdopen(reading, "rb", 0) as ended:
        for case in cases:
            if not select.select([ended], [], [], case.seconds)[0] or not (one := ended.read(1)):
                break
            statuses.append(one[0])
    if len(statuses) < len(cases):
        gone, code = os.waitpid(pid, os.WNOHANG) if _ends(pid) else (0, 0)
        statuses.append(os.waitstatus_to_exitcode(code) if gone else None)
        statuses += [0 if 0 in case.right else 2 for case in cases[len(statuses) :]]
    if None in statuses:
        _kill_all([pid])  # what it has started ends with it, and counts as the hang
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)  # it has said all, and its end may take a moment
        os.waitpid(pid, 0)
    return statuses


def _ends(pid: int) -> bool:
    """True if a process that says nothing more has ended, or does in a moment."""
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def _child(cases: Sequence[Case], folders: Sequence[Path], writing: int) -> None:
    """Be the command for each, and write its status."""
    status = RAISED
    try:
        os.setsid()
        os.set_inheritable(writing, False)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        own = dict(os.environ)
        with open(os.devnull) as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
        for case, folder in zip(cases, folders, strict=True):
            os.environ.clear()
            os.environ.update(own)
            status = _once(case, folder)
            os.write(writing, bytes([status & 0xFF]))
    finally:
        os._exit(status & 0xFF)


def _once(case: Case, folder: Path) -> int:
    """The status of the command, in this process."""
    for number, name in enumerate(STREAMS, 1):
        stream = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(stream, number)
        os.close(stream)
    try:
        os.chdir(folder / "cwd")
        os.environ.update(
            {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "COLUMNS": "250"}
            | dict(case.environment)
        )
        _redirect()
        if (modules := folder / "modules").is_dir():
            sys.path.insert(0, str(modules))
            earlier = os.environ.get("PYTHONPATH", "")
            os.environ["PYTHONPATH"] = f"{modules}{os.pathsep}{earlier}"
        if not case.privileged:
            give_up_reading()
        from asyncrl.cli import main

        if not case.architecture:
            _without_trial()
        return main(case.argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:  # noqa: BLE001 it is what is looked for
        traceback.print_exc()
        return RAISED
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def _redirect() -> None:
    """Open Python's streams again, and forget which folder is for temporary files."""
    import tempfile

    tempfile.tempdir = None
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _without_trial() -> None:
    """Leave out the trial of the architecture, which takes seconds, for a model that is good."""
    model_directories = importlib.import_module("asyncrl.launch.model_directories")
    model_directories.check_architecture = lambda *_: []  # type: ignore[attr-defined]


def give_up_reading() -> None:
    """Have no right to read or search what its mode forbids, nor any child."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()
    libc.capget(header, held)
    for at in range(3):  # effective, permitted, inheritable
        held[at] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    libc.capset(header, held)


# -------------------------------------------------------------------------------- what it left


def tree(folder: Path) -> Tree:
    """Every file below a folder: its kind, size, times and contents."""
    found: Tree = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                mark: object = ""
                if stat.S_ISLNK(status.st_mode):
                    mark = path.readlink()
                elif stat.S_ISREG(status.st_mode) and status.st_size < SMALL:
                    mark = hashlib.blake2b(path.read_bytes()).digest()
                elif stat.S_ISREG(status.st_mode):
                    mark = status.st_mtime_ns
                size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
                found[str(path.relative_to(folder))] = (status.st_mode, size, mark)
    return found


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _reaped() -> list[int]:
    """Children of this process that live; those that have ended are reaped."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return _children()


def _left() -> list[str]:
    """Command lines of what an attempt left running; they are killed."""
    end, pause = time.monotonic() + LEFT_S, 0.002
    while (living := _reaped()) and time.monotonic() < end:
        time.sleep(pause)
        pause = min(0.2, pause * 2)
    words = []
    for pid in living:
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            words.append(f"{pid} {line.decode(errors='replace')[:200]}")
    _kill_all(living)
    return words


def _kill_all(pids: list[int]) -> None:
    """Kill processes with all that they have started, which this process then adopts."""
    while pids:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        pids = _reaped()


@contextlib.contextmanager
def open_for_removal(folder: Path) -> Iterator[None]:
    """Inside the block a folder may be filled with what nobody may search; it can be removed
    after it."""
    try:
        yield
    finally:
        for root, folders, _ in os.walk(folder):
            for name in folders:
                with contextlib.suppress(OSError):
                    path = Path(root, name)
                    if not path.is_symlink():
                        path.chmod(0o700)
