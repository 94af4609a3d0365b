"""HTTP of a provider's API. Invariant: whatever the provider does, a call returns a decoded answer
or raises BoxError, in bounded time and memory; no sentence has the key.

A call is sent once. Only an answer of 429 or 503, by which the provider says that it did nothing,
is waited for and the call sent again, a few times.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2
import msgspec

from asyncrl.config.api_keys import hidden, key_of_file, key_of_variable
from asyncrl.config.errors import ConfigError
from asyncrl.escape import escaped
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.boxes.box_settings import BoxSettings

ANSWER_BYTES = 2**20
"""Bytes of an answer that is JSON."""
REFUSAL_BYTES = 2**14
"""Bytes of a refusal that are read."""
CALL_S = 60.0
"""Seconds of a call, unless it says another number."""
PAUSES_S = (1.0, 4.0, 16.0)
"""Seconds before a call is sent again."""
BUSY = (429, 503)
SHOWN = 200
"""Characters of a refusal that an error quotes."""

T = TypeVar("T")


class BoxApi:
    """Calls of a provider, called `who` in errors. `headers` go with each call."""

    def __init__(self, who: str, key: str, headers: Mapping[str, str]) -> None:
        self.who, self._key, self._headers = who, key, dict(headers)

    async def ask(
        self,
        method: str,
        url: str,
        kind: type[T],
        *,
        body: Any = None,
        seconds: float = CALL_S,
        absent: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> T | None:
        """Send a call, and return its answer as `kind`; None for an empty one, and, with `absent`,
        where there is no such thing (404). Raises BoxError."""
        content = None if body is None else msgspec.json.encode(body)
        more = {"content-type": "application/json", **(headers or {})}
        answer = await self.answer(
            method, url, content=content, seconds=seconds, absent=absent, headers=more
        )
        if not answer:
            return None
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.MsgspecError, RecursionError):
            raise self.error(url, "answered with what is not in the form of its API") from None

    async def answer(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        seconds: float = CALL_S,
        most: int = ANSWER_BYTES,
        absent: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> bytes | None:
        """Send a call, and return the bytes of its answer; as `ask`."""
        for pause in (*PAUSES_S, None):
            async with self.stream(method, url, content, seconds, headers or {}) as response:
                if response.status_code == 404 and absent:
                    return None
                if response.is_success:
                    return await self.whole(url, response, most)
                if response.status_code not in BUSY or pause is None:
                    raise await self.refused(url, response)
            await asyncio.sleep(pause)
        raise AssertionError("the last call returns or raises")

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        content: bytes | None,
        seconds: float,
        headers: Mapping[str, str],
    ) -> AsyncIterator[httpx2.Response]:
        """Send a call, and give its answer to the block, which ends within these seconds. Raises
        BoxError."""
        try:
            async with (
                asyncio.timeout(seconds),
                httpx2.AsyncClient(
                    timeout=httpx2.Timeout(None, connect=seconds),
                    trust_env=self._outside(url),
                    headers={"accept-encoding": "identity"},
                ) as client,
                client.stream(
                    method, url, content=content, headers={**self._headers, **headers}
                ) as response,
            ):
                yield response
        except TimeoutError:
            raise self.error(url, f"did not answer within {seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self.error(url, f"cannot be reached ({type(error).__name__})") from None

    async def refused(self, url: str, response: httpx2.Response) -> BoxError:
        """The error of an answer that is a refusal."""
        said = bytearray()
        async for part in response.aiter_raw():
            said += part
            if len(said) >= REFUSAL_BYTES:
                break
        text = " ".join(bytes(said[:REFUSAL_BYTES]).decode(errors="replace").split())
        shown = escaped(hidden(text, self._key), SHOWN)
        return self.error(url, f"answered {response.status_code}: {shown or 'nothing else'}")

    def error(self, url: str, what: str) -> BoxError:
        """The error of a call."""
        host = httpx2.URL(url).host if "://" in url else url
        return BoxError(f"{self.who} ({host}) {what}")

    async def whole(self, url: str, response: httpx2.Response, most: int) -> bytes:
        """Read all of an answer. Raises BoxError if it has more than `most` bytes."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self.error(url, "answered in an encoding that was not asked for")
        came = bytearray()
        async for part in response.aiter_raw():
            came += part
            if len(came) > most:
                raise self.error(url, f"answered with more than {most:,} bytes")
        return bytes(came)

    @staticmethod
    def _outside(url: str) -> bool:
        """True where the environment's proxy may be used: not on loopback."""
        return httpx2.URL(url).host not in ("127.0.0.1", "localhost", "::1")


def provider_key(settings: BoxSettings, variable: str) -> str:
    """The provider's key, of `sandbox.api_key_file`, or of its variable. Raises ConfigError."""
    if settings.api_key_file:
        return key_of_file("sandbox.api_key_file", settings.api_key_file)
    if key := key_of_variable(variable, os.environ):
        return key
    raise ConfigError(
        f"sandbox.kind is {settings.kind}, whose key is in no file (sandbox.api_key_file) and not "
        f"in the variable {variable}: export it where the run is started."
    )
