"""Sandboxes of Daytona, by its public API (https://www.daytona.io/docs/tools/api): `sandbox.image`
is an image of a registry that Daytona pulls.

    app.daytona.io/api    POST /sandbox, GET /sandbox/ID, GET /sandbox?labels=…, DELETE /sandbox/ID
    its toolboxProxyUrl   POST /ID/process/execute, /ID/files/upload, GET /ID/files/download

Daytona gives back both outputs of a command as one text. So a shell in the sandbox keeps each, up
to its bound, and prints them encoded. Below its tier 3, Daytona holds an organization's sandboxes
to hosts of its own, whatever is asked for here.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx2
import msgspec

from asyncrl.config.sandbox_hosts import ANY_HOST, is_network
from asyncrl.sandbox.boxes.box import BoxCommand, BoxProvider, BoxSpec
from asyncrl.sandbox.boxes.box_api import BoxApi, provider_key
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.boxes.box_names import LABEL
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.programs.program import Ran

API = "https://app.daytona.io/api"
TOOLBOX = "https://proxy.app.daytona.io/toolbox"
VARIABLE = "DAYTONA_API_KEY"
LOOK_S = 1.0
"""Seconds between two looks at a sandbox that starts: Daytona does not tell it otherwise."""
ENDING_S = 15.0
"""Seconds that a command's answer may take after its own seconds."""
_TIMED_OUT = 408
_KILLED = 137
_MARK = "asyncrl-ended"
_SCRIPT = """\
d=$(mktemp -d) && mkfifo "$d/o" "$d/e" || exit 125
head -c "$0" <"$d/o" >"$d/O" & head -c "$0" <"$d/e" >"$d/E" &
"$@" >"$d/o" 2>"$d/e"
c=$?
wait
echo "asyncrl-ended $c"; base64 <"$d/O" | tr -d '\\n'; echo; base64 <"$d/E" | tr -d '\\n'; echo
rm -rf "$d\""""


class DaytonaSandbox(msgspec.Struct, frozen=True, rename="camel"):
    """A sandbox."""

    id: str
    name: str = ""
    state: str = ""
    error_reason: str | None = None
    toolbox_proxy_url: str | None = None
    labels: dict[str, str] = {}


class DaytonaRan(msgspec.Struct, frozen=True, rename="camel"):
    """The end of a command."""

    exit_code: int = 0
    result: str = ""


class DaytonaBoxes(BoxProvider):
    """Sandboxes of Daytona."""

    kind = "daytona"

    def __init__(self, settings: BoxSettings, scratch: Path) -> None:
        super().__init__(settings, scratch)
        self._api = (settings.url or API).rstrip("/")

    def missing(self) -> str:
        provider_key(self.settings, VARIABLE)
        return ""

    def unenforceable(self, hosts: Sequence[str]) -> str:
        if hosts and ANY_HOST not in hosts and len({is_network(host) for host in hosts}) > 1:
            return "Daytona takes names of hosts, or networks, and not both"
        return ""

    async def create(self, spec: BoxSpec) -> DaytonaBox:
        try:
            async with asyncio.timeout(self.settings.start_s):
                return await self._create(spec)
        except TimeoutError:
            raise BoxError(
                f"the sandbox {spec.name} did not start within sandbox.start_s, "
                f"{self.settings.start_s:g} s"
            ) from None

    async def _create(self, spec: BoxSpec) -> DaytonaBox:
        minutes = math.ceil(self.settings.lasts_s / 60)
        made = await self._ask().ask(
            "POST",
            f"{self._api}/sandbox",
            DaytonaSandbox,
            body={
                "name": spec.name,
                "labels": {LABEL: spec.run},
                "buildInfo": {"dockerfileContent": f"FROM {spec.image}\n"},
                "autoStopInterval": minutes,
                "autoDeleteInterval": 0,
                **_network(spec.hosts),
            },
            seconds=self.settings.start_s,
        )
        while made is not None and made.state != "started":
            if made.state in ("error", "build_failed", "destroyed", "stopped"):
                why = f": {made.error_reason[:200]!r}" if made.error_reason else ""
                raise BoxError(
                    f"a sandbox of the image {spec.image} did not start ({made.state}){why}"
                )
            await asyncio.sleep(LOOK_S)
            url = f"{self._api}/sandbox/{quote(made.id, safe='')}"
            made = await self._ask().ask("GET", url, DaytonaSandbox)
        if made is None:
            raise BoxError(
                f"Daytona created no sandbox of the image {spec.image}, and gave no reason"
            )
        toolbox = self.settings.box_url or made.toolbox_proxy_url or TOOLBOX
        return DaytonaBox(self._ask(), f"{toolbox.rstrip('/')}/{quote(made.id, safe='')}")

    async def end(self, name: str) -> None:
        url = f"{self._api}/sandbox/{quote(name, safe='')}"
        await self._ask().answer("DELETE", url, absent=True)

    async def of_run(self, run: str) -> list[str]:
        asked = urlencode({"labels": json.dumps({LABEL: run})})
        found = await self._ask().ask("GET", f"{self._api}/sandbox?{asked}", list[DaytonaSandbox])
        return [sandbox.name for sandbox in found or () if sandbox.labels.get(LABEL) == run]

    def _ask(self) -> BoxApi:
        key = provider_key(self.settings, VARIABLE)
        return BoxApi("Daytona", key, {"authorization": f"Bearer {key}"})


class DaytonaBox:
    """A sandbox of Daytona, by its toolbox."""

    def __init__(self, api: BoxApi, url: str) -> None:
        self._api, self._url = api, url
        self._inputs = 0

    async def execute(self, command: BoxCommand) -> Ran:
        began = time.monotonic()
        script = _SCRIPT
        if command.stdin:
            self._inputs += 1
            file = f"/tmp/.asyncrl-input-{self._inputs}"
            await self.write(file, command.stdin)
            script = f"exec 0<{file}; rm -f {file}\n{script}"
        words = ["/bin/sh", "-c", script, str(command.output_bytes + 1)]
        given = [f"{name}={value}" for name, value in command.environment.items()]
        words += [*(["env", *given] if given else []), *command.argv]
        body: dict[str, object] = {"command": shlex.join(words)}
        body |= {"timeout": math.ceil(command.seconds)}
        body |= {"cwd": command.cwd} if command.cwd else {}
        url = f"{self._url}/process/execute"
        headers = {"content-type": "application/json"}
        seconds = command.seconds + ENDING_S
        content = msgspec.json.encode(body)
        async with self._api.stream("POST", url, content, seconds, headers) as response:
            if response.status_code == _TIMED_OUT:
                return _late(time.monotonic() - began)
            if not response.is_success:
                raise await self._api.refused(url, response)
            most = 4 * command.output_bytes + 2**16
            text = await self._api.whole(url, response, most)
        try:
            told = msgspec.json.decode(text, type=DaytonaRan)
        except (msgspec.MsgspecError, RecursionError):
            raise self._api.error(url, "answered with what is not in the form of its API") from None
        return self._ran(url, told, command.output_bytes, time.monotonic() - began)

    async def write(self, path: str, data: bytes) -> None:
        url = f"{self._url}/files/upload?{urlencode({'path': path})}"
        form = httpx2.Request("POST", url, files={"file": ("file", data)})
        await self._api.answer(
            "POST",
            url,
            content=form.read(),
            headers={"content-type": form.headers["content-type"]},
        )

    async def read(self, path: str, most: int) -> bytes | None:
        url = f"{self._url}/files/download?{urlencode({'path': path})}"
        return await self._api.answer("GET", url, most=most, absent=True)

    def _ran(self, url: str, told: DaytonaRan, most: int, seconds: float) -> Ran:
        """The end of a command, as the shell in the sandbox printed it. Raises BoxError."""
        lines = told.result.strip().splitlines()
        while lines and not lines[0].startswith(_MARK):
            lines = lines[1:]
        try:
            code = int(lines[0].split()[1])
            outputs = [base64.b64decode(line, validate=True) for line in (*lines[1:3], "", "")]
        except (IndexError, ValueError, binascii.Error):
            raise self._api.error(url, f"did not run a command: {told.result[-200:]!r}") from None
        return Ran(
            stdout=outputs[0][:most],
            stderr=outputs[1][:most],
            code=code,
            timed_out=False,
            truncated=len(outputs[0]) > most or len(outputs[1]) > most,
            seconds=seconds,
        )


def _late(seconds: float) -> Ran:
    """The end of a command at its seconds; what it had printed is lost."""
    return Ran(
        stdout=b"", stderr=b"", code=_KILLED, timed_out=True, truncated=False, seconds=seconds
    )


def _network(hosts: Sequence[str]) -> dict[str, object]:
    """The hosts, as Daytona is told of them.

    >>> _network([]), _network(["10.0.0.0/8"])
    ({'networkBlockAll': True}, {'networkAllowList': '10.0.0.0/8'})
    """
    if ANY_HOST in hosts:
        return {"networkBlockAll": False}
    if not hosts:
        return {"networkBlockAll": True}
    key = "networkAllowList" if is_network(hosts[0]) else "domainAllowList"
    return {key: ",".join(hosts)}
