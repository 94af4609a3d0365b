"""Sandboxes that confine nothing: a folder of the run on this machine, in which commands of this
user run. For trying an agent, and for code that is trusted.

A path that is not absolute is one in the folder; an absolute one is this machine's. Each command is
killed with its process group when it ends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from asyncrl.config.sandbox_hosts import ANY_HOST
from asyncrl.files import read_regular
from asyncrl.sandbox.boxes.box import BoxCommand, BoxProvider, BoxSpec
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.programs.program import Program, ProgramError, Ran
from asyncrl.sandbox.programs.program import environment_of as own_environment
from asyncrl.sandbox.programs.runner import Started, elsewhere
from asyncrl.sandbox.programs.unconfined import ProcessGroup
from asyncrl.sandbox.programs.under_asyncio import run_in_asyncio


class DirectoryBoxes(BoxProvider):
    """Folders of the run. `image` means nothing for them."""

    kind = "directory"
    thing = "directory"

    def missing(self) -> str:
        return elsewhere()

    def unenforceable(self, hosts: Sequence[str]) -> str:
        if ANY_HOST in hosts:
            return ""
        return 'a directory has this machine\'s network: say so by sandbox.hosts = ["*"]'

    async def create(self, spec: BoxSpec) -> DirectoryBox:
        folder = self.scratch / spec.name
        try:
            self.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.exists():  # an earlier run in this directory left it
                await self.end(spec.name)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise BoxError(f"{folder} cannot be made: {error.strerror}") from None
        return DirectoryBox(folder)

    async def end(self, name: str) -> None:
        folder = self.scratch / name
        if folder.is_symlink():
            raise BoxError(f"{folder} is a symbolic link, and is left")
        try:
            await asyncio.to_thread(shutil.rmtree, folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise BoxError(f"{folder} cannot be removed: {error.strerror}") from None

    async def of_run(self, run: str) -> list[str]:
        return sorted(path.name for path in self.scratch.glob(f"asyncrl-{run}-*"))


class DirectoryBox:
    """A folder in which commands run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def execute(self, command: BoxCommand) -> Ran:
        program = Program(
            argv=("/bin/sh", "-c", 'exec "$@"', "sh", *command.argv),
            stdin=command.stdin,
            environment=command.environment,
            seconds=command.seconds,
            output_bytes=command.output_bytes,
        )
        try:
            return await run_in_asyncio(program, _Folder(self._folder / command.cwd))
        except ProgramError as error:
            raise BoxError(str(error)) from None

    async def write(self, path: str, data: bytes) -> None:
        target = self._folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise BoxError(f"{path!r:.200} cannot be written: {error.strerror}") from None

    async def read(self, path: str, most: int) -> bytes | None:
        target = self._folder / path
        try:
            return read_regular(target, most)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BoxError(f"{path!r:.200} cannot be read: {error}") from None


class _Folder:
    """A kind of sandbox for the runner: a program in this folder, in a process group."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def missing(self) -> str:
        return ""

    @contextmanager
    def start(self, program: Program) -> Iterator[Started]:
        variables: Mapping[str, str] = own_environment(program, str(self._folder))
        path = {"PATH": os.environ.get("PATH", os.defpath)}
        try:
            process = subprocess.Popen(
                program.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._folder,
                env={**variables, **path, **program.environment},
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramError(
                f"a command cannot be started in {self._folder}: {error.strerror}"
            ) from None
        yield ProcessGroup(process)
