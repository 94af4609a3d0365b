"""The sandbox `docker`: a program in a container of an image of yours, by the command `docker run`.

Its limits are the container's: memory and processes are counted for all of it together. The image
has the languages' tools, `sh` and `cp`. A container is removed with its program; in an agent's
attempt it has a note (`asyncrl.sandbox.opened`), so it is removed, too, if this process is killed.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.own_folder import own_folder
from asyncrl.sandbox.enders import absent
from asyncrl.sandbox.opened import NoteError, Opened, ended_here, note_here
from asyncrl.sandbox.programs.program import (
    GATEWAY,
    WORK,
    Program,
    ProgramError,
    environment_of,
    limited,
)
from asyncrl.sandbox.programs.runner import Started, run
from asyncrl.sandbox.programs.unconfined import write_files
from asyncrl.sandbox.zygote import NOBODY

FILES = "/program"
"""The directory of a program's files in the container, from which they are copied to WORK."""
KILL_S = 30.0
"""Seconds that `docker kill` may take."""
TRIAL_S = 120.0
"""Seconds that the first container may take."""
_COPY = f'cp -R {FILES}/. . && exec "$@"'


def arguments(program: Program, image: str, name: str, files: str) -> list[str]:
    """The arguments of `docker` that run a program in a container `name`; its files are in the
    folder `files`."""
    limits = program.limits
    words = ["run", "--rm", "--interactive", "--name", name, "--hostname", "program"]
    words += ["--network", "none", "--read-only", "--cap-drop", "ALL", "--pull", "never"]
    words += ["--security-opt", "no-new-privileges", "--user", f"{NOBODY}:{NOBODY}", "--init"]
    words += ["--pids-limit", str(limits.processes), "--memory", str(limits.memory_bytes)]
    words += ["--memory-swap", str(limits.memory_bytes), "--oom-score-adj", "1000"]
    words += ["--tmpfs", f"{WORK}:rw,exec,nosuid,nodev,mode=1777,size={limits.scratch_bytes}"]
    words += ["--mount", f"type=bind,src={files},dst={FILES},readonly", "--workdir", WORK]
    if program.gateway:
        words += ["--mount", f"type=bind,src={program.gateway},dst={GATEWAY},readonly"]
    for key, value in environment_of(program, WORK).items():
        words += ["--env", f"{key}={value}"]
    words += ["--entrypoint", "/bin/sh", image, "-c", _COPY, "sh"]
    return words + limited(program.argv, limits, most={}, processes=False)


class Container:
    """The sandbox `docker`, with containers of an `image`; `client` is the command."""

    def __init__(self, image: str, client: str = "docker") -> None:
        self._image = image
        self._client = client

    def missing(self) -> str:
        if shutil.which(self._client) is None:
            return f"there is no command {self._client}: install it, or choose another sandbox"
        try:
            ran = run(Program(argv=("true",), seconds=TRIAL_S), self)
        except ProgramError as error:
            return str(error)
        return "" if ran.well else f"a program that does nothing ended with {ran.code} there"

    @contextmanager
    def start(self, program: Program) -> Iterator[Started]:
        if program.paths:
            raise ProgramError(
                "a container shows a program only its image, and no paths of this machine"
            )
        name = f"asyncrl-{secrets.token_hex(8)}"
        with own_folder("program") as folder:
            folder.chmod(0o755)
            write_files(folder, program.files)
            words = arguments(program, self._image, name, str(folder))
            opened = Opened("container", name, (Path(self._client).name,))
            try:
                note_here(opened)
            except (NoteError, OSError) as error:
                raise ProgramError(f"the container has no note: {error}") from None
            try:
                process = subprocess.Popen(
                    [self._client, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                ended_here(opened)
                raise ProgramError(f"{self._client} cannot be started: {error.strerror}") from None
            yield _Contained(process, self._client, opened)


class _Contained:
    """A container. Its client only has its pipes: killing the client would leave it running."""

    def __init__(self, process: subprocess.Popen[bytes], client: str, opened: Opened) -> None:
        self.process = process
        self._client = client
        self._opened, self._name = opened, opened.name

    def kill(self) -> None:
        # whose client has ended is there, or is gone; of another the engine may have the request
        known = (code := self.process.poll()) is not None and code >= 0
        try:
            ran = subprocess.run(
                [self._client, "rm", "--force", self._name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=KILL_S,
                check=False,
            )
            missing = absent(ran.stderr.decode(errors="replace"))
            if known if missing else not ran.returncode:
                ended_here(self._opened)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProgramError(f"the container {self._name} may still run: {error}") from error
        finally:
            self.process.kill()

    def refusal(self, stderr: bytes) -> str:
        if self.process.returncode not in (125, 126, 127):
            return ""
        text = stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"docker did not run the program: {text}" if text.startswith("docker: ") else ""
