"""Sandboxes of E2B, by its public API (https://e2b.dev/docs/api-reference): `sandbox.image` is a
template's id or name.

    api.e2b.app              POST /sandboxes, GET /v2/sandboxes, DELETE /sandboxes/ID
    49983-ID.e2b.app (envd)  POST /process.Process/Start (Connect, JSON), …/SendSignal; /files

A sandbox's name and its run are its metadata, by which it is found. E2B holds names of hosts by the
Host header on port 80 and by TLS' server name on 443, and other ports by addresses alone.
"""

from __future__ import annotations

import base64
import math
import struct
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx2
import msgspec

from asyncrl.config.sandbox_hosts import ANY_HOST
from asyncrl.sandbox.boxes.box import BoxCommand, BoxProvider, BoxSpec
from asyncrl.sandbox.boxes.box_api import BoxApi, provider_key
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.boxes.box_names import LABEL, NAME
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.programs.program import Ran

API = "https://api.e2b.app"
VARIABLE = "E2B_API_KEY"
DOMAIN = "e2b.app"
ENVD_PORT = 49983
USER = "user"
"""The user of a template that commands run as."""
STARTING_S = 30.0
"""Seconds on top of a command's that its answer may take."""
_HEAD = struct.Struct(">BI")
_ENVELOPE_BYTES = 2**22
_LAST = 2
"""Flag of the last envelope of a stream."""
_KILLED = 137


class E2bSandbox(msgspec.Struct, frozen=True, rename="camel"):
    """A sandbox, as it was created or is listed."""

    sandbox_id: str = msgspec.field(name="sandboxID")
    domain: str | None = None
    envd_access_token: str | None = None
    metadata: dict[str, str] = {}


class E2bStart(msgspec.Struct, frozen=True):
    """The start of a process."""

    pid: int = 0


class E2bData(msgspec.Struct, frozen=True):
    """A piece of output."""

    stdout: bytes = b""
    stderr: bytes = b""


class E2bEnd(msgspec.Struct, frozen=True, rename="camel"):
    """The end of a process; JSON leaves out a code of 0."""

    exit_code: int = 0
    exited: bool = False
    status: str = ""


class E2bEvent(msgspec.Struct, frozen=True):
    """An event of a process: one of these."""

    start: E2bStart | None = None
    data: E2bData | None = None
    end: E2bEnd | None = None


class E2bMessage(msgspec.Struct, frozen=True):
    """An envelope of the stream."""

    event: E2bEvent = E2bEvent()
    error: dict[str, object] | None = None


class E2bBoxes(BoxProvider):
    """Sandboxes of E2B."""

    kind = "e2b"

    def __init__(self, settings: BoxSettings, scratch: Path) -> None:
        super().__init__(settings, scratch)
        self._api = (settings.url or API).rstrip("/")

    def missing(self) -> str:
        provider_key(self.settings, VARIABLE)
        return ""

    def unenforceable(self, hosts: Sequence[str]) -> str:
        return ""

    async def create(self, spec: BoxSpec) -> E2bBox:
        made = await self._ask().ask(
            "POST",
            f"{self._api}/sandboxes",
            E2bSandbox,
            body={
                "templateID": spec.image,
                "timeout": math.ceil(self.settings.lasts_s),
                "metadata": {LABEL: spec.run, NAME: spec.name},
                "secure": True,
                **_network(spec.hosts),
            },
            seconds=self.settings.start_s,
        )
        if made is None:
            raise BoxError(f"E2B created no sandbox of the image {spec.image}, and gave no reason")
        return E2bBox(made, self.settings.box_url)

    async def end(self, name: str) -> None:
        for sandbox in await self._found(NAME, name):
            url = f"{self._api}/sandboxes/{quote(sandbox.sandbox_id, safe='')}"
            await self._ask().answer("DELETE", url, absent=True)

    async def of_run(self, run: str) -> list[str]:
        return [found.metadata.get(NAME, "") for found in await self._found(LABEL, run)]

    async def _found(self, key: str, value: str) -> list[E2bSandbox]:
        asked = urlencode({"metadata": urlencode({key: value}), "state": "running,paused"})
        found = await self._ask().ask("GET", f"{self._api}/v2/sandboxes?{asked}", list[E2bSandbox])
        # asked again here: another provider of this API may not know the filter
        return [sandbox for sandbox in found or () if sandbox.metadata.get(key) == value]

    def _ask(self) -> BoxApi:
        key = provider_key(self.settings, VARIABLE)
        return BoxApi("E2B", key, {"x-api-key": key})


class E2bBox:
    """A sandbox of E2B, by its own API."""

    def __init__(self, made: E2bSandbox, box_url: str) -> None:
        host = f"{ENVD_PORT}-{made.sandbox_id}.{made.domain or DOMAIN}"
        self._url = (box_url.replace("{id}", made.sandbox_id) or f"https://{host}").rstrip("/")
        token = made.envd_access_token or ""
        user = base64.b64encode(f"{USER}:".encode()).decode()
        self._api = BoxApi(
            "a sandbox of E2B",
            token,
            {
                "authorization": f"Basic {user}",
                "e2b-sandbox-id": made.sandbox_id,
                "e2b-sandbox-port": str(ENVD_PORT),
                **({"x-access-token": token} if token else {}),
            },
        )
        self._inputs = 0

    async def execute(self, command: BoxCommand) -> Ran:
        began = time.monotonic()
        argv = list(command.argv)
        if command.stdin:
            self._inputs += 1
            file = f"/tmp/.asyncrl-input-{self._inputs}"
            await self.write(file, command.stdin)
            argv = ["/bin/sh", "-c", 'exec 0<"$0"; rm -f "$0"; exec "$@"', file, *argv]
        process: dict[str, object] = {"cmd": argv[0], "args": argv[1:]}
        process |= {"envs": dict(command.environment)} if command.environment else {}
        process |= {"cwd": command.cwd} if command.cwd else {}
        gathered = _Gathered(command.output_bytes)
        limit = began + command.seconds
        try:
            async for message in self._started(process, command.seconds):
                gathered.take(message)
                if gathered.over or time.monotonic() > limit:
                    break
        except BoxError:
            if time.monotonic() < limit or not gathered.pid:  # then no command has begun
                raise
        if gathered.end is None and not gathered.over and time.monotonic() < limit:
            raise self._api.error(self._url, "ended a command's output before the command")
        if gathered.end is None:
            await self._kill(gathered.pid)
        return gathered.ran(time.monotonic() - began)

    async def write(self, path: str, data: bytes) -> None:
        form = httpx2.Request("POST", self._url, files={"file": ("file", data)})
        await self._api.answer(
            "POST",
            self._file(path),
            content=form.read(),
            headers={"content-type": form.headers["content-type"]},
        )

    async def read(self, path: str, most: int) -> bytes | None:
        return await self._api.answer("GET", self._file(path), most=most, absent=True)

    def _file(self, path: str) -> str:
        return f"{self._url}/files?{urlencode({'path': path, 'username': USER})}"

    async def _started(
        self, process: Mapping[str, object], seconds: float
    ) -> AsyncIterator[E2bMessage]:
        """The events of a process. Raises BoxError."""
        body = msgspec.json.encode({"process": process, "stdin": False})
        headers = {
            "content-type": "application/connect+json",
            "connect-protocol-version": "1",
            "connect-timeout-ms": str(math.ceil(1000 * (seconds + STARTING_S))),
        }
        url = f"{self._url}/process.Process/Start"
        content = _HEAD.pack(0, len(body)) + body
        async with self._api.stream("POST", url, content, seconds, headers) as response:
            if not response.is_success:
                raise await self._api.refused(url, response)
            came = bytearray()
            async for part in response.aiter_raw():
                came += part
                while len(came) >= _HEAD.size:
                    flags, size = _HEAD.unpack_from(came)
                    if size > _ENVELOPE_BYTES:
                        raise self._api.error(url, "announced a message that is too large")
                    if len(came) < _HEAD.size + size:
                        break
                    text = bytes(came[_HEAD.size : _HEAD.size + size])
                    del came[: _HEAD.size + size]
                    message = self._decoded(url, text)
                    if message.error is not None:
                        said = str(message.error.get("message", ""))[:200]
                        raise self._api.error(url, f"did not run a command: {said!r}")
                    if flags & _LAST:
                        return
                    yield message

    def _decoded(self, url: str, text: bytes) -> E2bMessage:
        try:
            return msgspec.json.decode(text, type=E2bMessage)
        except (msgspec.MsgspecError, RecursionError):
            raise self._api.error(url, "answered with what is not in the form of its API") from None

    async def _kill(self, pid: int) -> None:
        """Kill a command that exceeds its bounds. What it started may go on."""
        if pid:
            await self._api.ask(
                "POST",
                f"{self._url}/process.Process/SendSignal",
                dict[str, object],
                body={"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"},
                absent=True,
            )


class _Gathered:
    """The output of a command so far, of which `most` bytes of each kind are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._stdout, self._stderr = bytearray(), bytearray()
        self.pid = 0
        self.end: E2bEnd | None = None

    @property
    def over(self) -> bool:
        return len(self._stdout) > self._most or len(self._stderr) > self._most

    def take(self, message: E2bMessage) -> None:
        event = message.event
        if event.start is not None:
            self.pid = event.start.pid
        if event.data is not None:
            self._stdout += event.data.stdout
            self._stderr += event.data.stderr
        if event.end is not None:
            self.end = event.end

    def ran(self, seconds: float) -> Ran:
        code = _KILLED
        if self.end is not None and (self.end.exited or self.end.exit_code >= 0):
            code = self.end.exit_code
        return Ran(
            stdout=bytes(self._stdout[: self._most]),
            stderr=bytes(self._stderr[: self._most]),
            code=code,
            timed_out=self.end is None and not self.over,
            truncated=self.over,
            seconds=seconds,
        )


def _network(hosts: Sequence[str]) -> dict[str, object]:
    """The hosts, as E2B is told of them.

    >>> _network(["pypi.org"])["network"]
    {'allowOut': ['pypi.org'], 'denyOut': ['0.0.0.0/0']}
    """
    if ANY_HOST in hosts:
        return {"allow_internet_access": True}
    if not hosts:
        return {"allow_internet_access": False}
    return {"network": {"allowOut": list(hosts), "denyOut": ["0.0.0.0/0"]}}
