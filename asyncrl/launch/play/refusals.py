"""ASGI around the gateway that passes everything on, and reports the responses that are errors."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES = 2**14
"""Bytes of an error's body that are reported, at most."""


class Refusals:
    """Calls `report(request, status, body)` after each response with a status from 400 on."""

    def __init__(self, report: Callable[[str, int, bytes], None], app: ASGIApp) -> None:
        self._report, self._app = report, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body = 0, b""

        async def passed_on(message: Message) -> None:
            nonlocal status, body
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and len(body) < BODY_BYTES:
                body += message.get("body", b"")[:BODY_BYTES]
            await send(message)

        await self._app(scope, receive, passed_on)
        if status >= 400:
            self._report(f"{scope['method']} {scope['path']}", status, body)
