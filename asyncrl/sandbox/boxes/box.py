"""A sandbox as an agent sees it, and what a provider of sandboxes must have.

Invariant: whatever a sandbox does, each call returns or raises BoxError in bounded time and memory.
A BoxError is the sandbox's fault: nothing is known of what ran in it, and it is never a reward of
zero.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec

from asyncrl.config.sandbox_hosts import ANY_HOST
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.boxes.box_names import wrong_path
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.boxes.image_store import ImageStore
from asyncrl.sandbox.programs.program import Ran

T = TypeVar("T")
OUTPUT_BYTES = 2**20
"""Bytes of each of a command's outputs that are kept, unless a call says another number."""
FILE_BYTES = 2**26
"""Bytes of the largest file that goes into a sandbox or comes out of it."""
ARGUMENT_BYTES = 2**16
"""Bytes of a command's words and of its variables, at most: longer text is input, or a file."""
SPARE_S = 60.0
"""Seconds that a call may take on top of its command's: for the sandbox, and its network."""

BoxKind = Literal["container", "remote", "directory"]
"""The one who ends a sandbox: its engine, its provider, or the run whose folder it is."""


class BoxThing(msgspec.Struct, frozen=True):
    """A sandbox as something that must be ended: its kind, its name, and the client or provider
    that ends it; `end` is empty for a directory."""

    kind: BoxKind
    name: str
    by: str

    @property
    def end(self) -> tuple[str, ...]:
        """The end of its note (`asyncrl.sandbox.opened`)."""
        return () if self.kind == "directory" else (self.by,)


class BoxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to create. `run` is the run's id, and `hosts` are those that it may reach."""

    name: str
    run: str
    image: str
    hosts: tuple[str, ...] = ()


class BoxCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run in a sandbox: in `cwd`, or where its image begins; with these variables on
    top of the image's; for `seconds`. `output_bytes` are kept of each of its outputs."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    cwd: str = ""
    seconds: float = 60.0
    output_bytes: int = OUTPUT_BYTES


class BoxBackend(Protocol):
    """A sandbox that was created. All methods raise BoxError. A command is over when it has ended,
    exceeds its seconds or its output: then it is killed."""

    async def execute(self, command: BoxCommand) -> Ran: ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file; its folder is made."""
        ...

    async def read(self, path: str, most: int) -> bytes | None:
        """Read a file of `most` bytes or fewer; None if there is none."""
        ...


class BoxProvider(ABC):
    """A provider of sandboxes, with the settings of a run. `scratch` is the run's folder for
    directories."""

    kind = ""
    thing: BoxKind = "remote"

    @property
    def named(self) -> str:
        """The name that notes of its sandboxes have; that of a class of the user's is `own`."""
        return self.kind or "own"

    def __init__(self, settings: BoxSettings, scratch: Path) -> None:
        self.settings, self.scratch = settings, scratch

    @abstractmethod
    def missing(self) -> str:
        """Return a sentence that says why this machine has no such sandboxes; "" if it has. It may
        block for a minute. Raises ConfigError where a key is missing."""

    @abstractmethod
    def unenforceable(self, hosts: Sequence[str]) -> str:
        """Return a sentence that says why a sandbox cannot be held to these hosts; "" if it
        can."""

    def unbounded(self) -> str:
        """Return a sentence that says which of a sandbox's limits are not kept here; "" if all are.
        It may block for a minute."""
        return ""

    @abstractmethod
    async def create(self, spec: BoxSpec) -> BoxBackend:
        """Create a sandbox. If this raises BoxError or is cancelled, `end` ends what there is."""

    @abstractmethod
    async def end(self, name: str) -> None:
        """End the sandbox of this name, which may be gone, or never have been. Raises BoxError if
        it may live on."""

    def images(self) -> ImageStore | None:
        """The images that it has on this machine; None if it has none here."""
        return None

    @abstractmethod
    async def of_run(self, run: str) -> list[str]:
        """The names of the sandboxes of a run's id that are there. Raises BoxError."""


class Box:
    """A sandbox that an attempt has opened. `name` is its name at its provider.

    ran = await box.run(["pytest", "-q"], seconds=300)
    """

    def __init__(self, name: str, backend: BoxBackend) -> None:
        self.name = name
        self._backend = backend

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str = b"",
        seconds: float = 60.0,
        output_bytes: int = OUTPUT_BYTES,
        environment: Mapping[str, str] | None = None,
        cwd: str = "",
    ) -> Ran:
        """Run a command to its end, its seconds, or its bound of output. Raises BoxError, and
        ValueError for what is no command."""
        command = BoxCommand(
            argv=tuple(argv) if not isinstance(argv, str) else ("/bin/sh", "-c", argv),
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            environment=dict(environment or {}),
            cwd=cwd,
            seconds=seconds,
            output_bytes=output_bytes,
        )
        _refuse(command)
        return await self._within(
            self._backend.execute(command), seconds + SPARE_S, "run a command"
        )

    async def put(self, path: str, data: bytes | str) -> None:
        """Write a file, absolute or from where commands begin; its folder is made. Raises BoxError,
        and ValueError for what is no path or too large."""
        content = data.encode() if isinstance(data, str) else data
        if wrong := wrong_path(path):
            raise ValueError(wrong)
        if len(content) > FILE_BYTES:
            raise ValueError(f"a file of {len(content):,} bytes is over the bound {FILE_BYTES:,}")
        await self._within(self._backend.write(path, content), 2 * SPARE_S, "write a file")

    async def get(self, path: str, most: int = FILE_BYTES) -> bytes:
        """Read a file of `most` bytes or fewer. Raises FileNotFoundError, and BoxError, also for a
        larger one."""
        if wrong := wrong_path(path):
            raise ValueError(wrong)
        content = await self._within(self._backend.read(path, most), 2 * SPARE_S, "read a file")
        if content is None:
            raise FileNotFoundError(f"{path!r:.200} is not in the sandbox {self.name}")
        return content

    async def _within(self, call: Awaitable[T], seconds: float, what: str) -> T:
        try:
            return await asyncio.wait_for(call, seconds)
        except TimeoutError:
            raise BoxError(f"the sandbox {self.name} did not {what} within {seconds:g} s") from None


def _refuse(command: BoxCommand) -> None:
    """Raise ValueError for what cannot be a command."""
    words = [*command.argv, *command.environment, *command.environment.values(), command.cwd]
    if not command.argv or not all(isinstance(word, str) for word in words):
        raise ValueError("a command is a list of words, and its variables are texts")
    if any("\0" in word for word in words):
        raise ValueError("a word of a command, or a variable, has a NUL in it")
    if sum(len(word.encode()) for word in words) > ARGUMENT_BYTES:
        raise ValueError(
            f"a command and its variables have more than {ARGUMENT_BYTES:,} bytes: give long text "
            "as stdin, or put it into a file"
        )
    for name, value in command.environment.items():
        if not name.isidentifier() or not name.isascii() or "\n" in value:
            raise ValueError(f"the variable {name[:80]!r} has a name or a value that cannot be set")
    if command.cwd.startswith("-"):
        raise ValueError(f"{command.cwd[:80]!r} is no folder of a sandbox")
    if not command.seconds > 0 or command.output_bytes < 0:
        raise ValueError("a command has seconds above 0, and output bytes of 0 or more")


def refused_hosts(asked: Sequence[str], allowed: Sequence[str]) -> str:
    """The reason why a sandbox may not reach what is asked for; "" if it may.

    >>> refused_hosts(["pypi.org"], ["pypi.org"]), refused_hosts(["a.org"], [])
    ('', "sandbox.hosts does not have 'a.org'")
    """
    if ANY_HOST in allowed:
        return ""
    beyond = [host for host in asked if host not in allowed]
    return f"sandbox.hosts does not have {beyond[0]!r:.100}" if beyond else ""
