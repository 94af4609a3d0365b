"""Sandboxes that are containers of an engine on this machine, by its client: `docker`, `podman`.

    a container: no network (or the engine's own), no capabilities, no new privileges, limits of
    memory and processes counted for all of it, the image's user and files; it ends by itself after
    `sandbox.lasts_s`, and is removed by its name

Invariant: a command that ends early leaves nothing behind, because the container is restarted: its
files stay, and all of its processes end. Each command first prints a line on standard error, so a
failure of the engine is told from one of the command.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from asyncrl.config.sandbox_hosts import ANY_HOST
from asyncrl.sandbox.boxes.box import BoxCommand, BoxProvider, BoxSpec
from asyncrl.sandbox.boxes.box_errors import BoxError, ImageError
from asyncrl.sandbox.boxes.box_names import LABEL, wrong_image
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.client_command import ClientCommand, ask, asked, last_line
from asyncrl.sandbox.boxes.image_store import GIGABYTE, ImageStore
from asyncrl.sandbox.programs.program import Program, ProgramError, Ran
from asyncrl.sandbox.programs.under_asyncio import run_in_asyncio

END_S = 60.0
"""Seconds that the end of a container may take."""
WRITE_S = 60.0
"""Seconds in which a file is written or read."""
LIMITS = ("memory", "pids")
"""The controllers that keep a container's limits."""
_BEGIN = 'echo >&2; cd -- "$0" && exec "$@"'
_LAST = 'sleep "$0" & wait $!'
"""Waiting also reaps what ends in the container."""
_WRITE = 'case $1 in */*) mkdir -p "${1%/*}" || exit 1;; esac; cat >"$1"'
_READ = 'test -e "$1" || exit 44; exec cat "$1"'
_NO_FILE = 44
_ABSENT = ("no such container", "no container with name or id")
_TAKEN = ("is already in use",)


class ContainerProvider(BoxProvider):
    """Containers; the kind is the name of the engine's client."""

    thing = "container"
    controllers: ClassVar[str]
    """The form in which the engine says which limits it can keep."""

    def images(self) -> ImageStore:
        return ImageStore(self.kind, self.settings)

    def missing(self) -> str:
        if shutil.which(self.kind) is None:
            return f"there is no command {self.kind} on this machine"
        try:
            ran = ask([self.kind, "ps", "--quiet"])
        except ProgramError as error:
            return str(error)
        return "" if ran.code == 0 else f"{self.kind} does not answer: {last_line(ran)}"

    def unenforceable(self, hosts: Sequence[str]) -> str:
        if not hosts or ANY_HOST in hosts:
            return ""
        return (
            f"{self.kind} gives a container no network or all of it, and cannot hold it to single "
            "hosts"
        )

    def unbounded(self) -> str:
        try:
            ran = ask([self.kind, "info", "--format", self.controllers])
        except ProgramError:
            return ""  # `missing` says why
        lacks = [one for one in LIMITS if one.encode() not in ran.stdout.split()]
        if ran.code or not lacks:
            return ""
        return (
            f"{self.kind} does not bound the {' and '.join(lacks)} of its containers on this "
            "machine: run it as root, or, for rootless containers, have cgroup v2 delegate these "
            "controllers to the user"
        )

    async def create(self, spec: BoxSpec) -> ContainerBox:
        await self.pull(spec.image)
        ran = await self._said(container(spec, self.settings), self.settings.start_s)
        if ran.code and any(words in ran.stderr.lower().decode("latin-1") for words in _TAKEN):
            await self.end(spec.name)  # an earlier run in this directory left it
            ran = await self._said(container(spec, self.settings), self.settings.start_s)
        if ran.timed_out:
            raise BoxError(
                f"the sandbox {spec.name} did not start within sandbox.start_s, "
                f"{self.settings.start_s:g} s"
            )
        if ran.code:
            raise BoxError(f"a sandbox of the image {spec.image} did not start: {last_line(ran)}")
        return ContainerBox(self.kind, spec.name)

    async def pull(self, image: str) -> None:
        """Have an image here. Raises ImageError and BoxError."""
        store = self.images()
        if not store.is_here(image, await _ran(store.looks(image))):
            store.refuse(image, await _ran(store.pulls(image)))

    async def end(self, name: str) -> None:
        ran = await self._said(["rm", "--force", "--volumes", name], END_S)
        said = ran.stderr.decode(errors="replace").lower()
        if ran.code and not any(words in said for words in _ABSENT):
            raise BoxError(f"the sandbox {name} may live on: {last_line(ran)}")

    async def of_run(self, run: str) -> list[str]:
        words = ["ps", "--all", "--filter", f"label={LABEL}={run}", "--format", "{{.Names}}"]
        ran = await self._said(words, END_S)
        if not ran.well:
            raise BoxError(f"{self.kind} does not say which sandboxes there are: {last_line(ran)}")
        return ran.stdout.decode(errors="replace").split()

    async def _said(self, words: Sequence[str], seconds: float) -> Ran:
        return await _ran(asked([self.kind, *words], seconds))


class ContainerBox:
    """A container, to which its client goes."""

    def __init__(self, client: str, name: str) -> None:
        self._client, self._name = client, name

    async def execute(self, command: BoxCommand) -> Ran:
        before = [self._client, "exec", "--interactive"]
        program = Program(
            argv=(self._name, "/bin/sh", "-c", _BEGIN, command.cwd or ".", *command.argv),
            stdin=command.stdin,
            seconds=command.seconds,
            output_bytes=command.output_bytes + 1,
        )
        ran = await _ran(program, ClientCommand(before, command.environment))
        if ran.timed_out or ran.truncated:
            await self._restart()
        elif not ran.stderr.startswith(b"\n"):
            ended = " (it ends by itself after sandbox.lasts_s)" if b"running" in ran.stderr else ""
            raise BoxError(
                f"the sandbox {self._name} did not begin a command: {last_line(ran)}{ended}"
            )
        return msgspec.structs.replace(
            ran,
            stdout=ran.stdout[: command.output_bytes],
            stderr=ran.stderr.removeprefix(b"\n")[: command.output_bytes],
        )

    async def write(self, path: str, data: bytes) -> None:
        ran = await self._shell(_WRITE, path, data, 0)
        if not ran.well:
            raise BoxError(f"{path!r:.200} cannot be written in a sandbox: {last_line(ran)}")

    async def read(self, path: str, most: int) -> bytes | None:
        ran = await self._shell(_READ, path, b"", most)
        if ran.code == _NO_FILE and not ran.truncated:
            return None
        if ran.truncated or len(ran.stdout) > most:
            raise BoxError(f"{path!r:.200} in a sandbox has more than {most:,} bytes")
        if not ran.well:
            raise BoxError(f"{path!r:.200} cannot be read in a sandbox: {last_line(ran)}")
        return ran.stdout

    async def _shell(self, script: str, path: str, stdin: bytes, most: int) -> Ran:
        argv = ("/bin/sh", "-c", script, "sh", path)
        return await self.execute(
            BoxCommand(argv=argv, stdin=stdin, seconds=WRITE_S, output_bytes=max(most, 2**12))
        )

    async def _restart(self) -> None:
        """End all processes in the container."""
        ran = await _ran(asked([self._client, "restart", "-t", "0", self._name], END_S))
        if not ran.well:
            raise BoxError(f"a command in {self._name} may go on: {last_line(ran)}")


def container(spec: BoxSpec, settings: BoxSettings) -> list[str]:
    """The words for a client that create and start a container. Raises ImageError for what is no
    name of an image: it must not become an option."""
    if wrong := wrong_image(spec.image):
        raise ImageError(wrong)
    memory = str(int(settings.memory_gb * GIGABYTE))
    words = ["run", "--detach", "--name", spec.name, "--label", f"{LABEL}={spec.run}"]
    words += ["--pull", "never", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += [] if spec.hosts else ["--network", "none"]
    words += ["--memory", memory, "--memory-swap", memory, "--oom-score-adj", "1000"]
    words += ["--pids-limit", str(settings.processes), "--stop-timeout", "0"]
    words += ["--entrypoint", "/bin/sh", spec.image, "-c", _LAST, str(math.ceil(settings.lasts_s))]
    return words


async def _ran(program: Program, sandbox: ClientCommand | None = None) -> Ran:
    """Run a client's command. Raises BoxError."""
    try:
        return await run_in_asyncio(program, sandbox or ClientCommand())
    except ProgramError as error:
        raise BoxError(str(error)) from None
