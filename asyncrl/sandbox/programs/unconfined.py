"""The sandbox `none`, which confines nothing: a program is a process of this user in a directory of
its own. It can be killed with its process group, has an environment of its own, and limits but that
of processes. It may read what this user may read, and a process that leaves its group lives on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from asyncrl.own_folder import own_folder
from asyncrl.sandbox.programs.program import (
    Program,
    ProgramError,
    environment_of,
    hard_limits,
    limited,
)
from asyncrl.sandbox.programs.runner import Started, elsewhere


class Unconfined:
    """The sandbox `none`."""

    def missing(self) -> str:
        return elsewhere()

    @contextmanager
    def start(self, program: Program) -> Iterator[Started]:
        with own_folder("program") as work:
            write_files(work, program.files)
            argv = limited(program.argv, program.limits, most=hard_limits(), processes=False)
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=work,
                    env=environment_of(program, str(work)),
                    start_new_session=True,
                )
            except OSError as error:
                raise ProgramError(f"{argv[0]} cannot be started: {error.strerror}") from None
            yield ProcessGroup(process)


class ProcessGroup:
    """A program that was started as the first process of a group, which is killed with it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def refusal(self, stderr: bytes) -> str:
        return ""


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a program's files, each of which may be executed."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755)
