"""The gate before every page: an ASGI application that lets in whoever may look. Invariant: pages
are only read; and who has not the key, or names another host, gets nothing.

Where pages are on loopback there is no key, and they answer only to the names of loopback: another
web page, whose name was made to point here, is refused. Elsewhere the key comes once, as `/?key=…`,
and is a cookie from then on, so that no address that is shown, kept or sent on has it.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

from asyncrl.explain.views.assets import SCRIPTS, asset, style
from asyncrl.explain.views.html_page import page, tag
from asyncrl.runtime.httpd.asgi import Headers, Receive, Scope, Send
from asyncrl.words import whole

ASSETS = "assets/"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The names under which a page on loopback is asked for."""
HTML = "text/html; charset=utf-8"
ALWAYS = {
    b"cache-control": b"no-cache",
    b"content-security-policy": b"frame-ancestors 'none'",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}
"""Headers of every answer."""


class PageAnswer(NamedTuple):
    """An answer, of these headers besides those of every one."""

    status: int
    kind: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class PageRefused(Exception):
    """A request is not answered but with this status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


Pages = Callable[[str, Headers], Awaitable[PageAnswer]]
"""Answers to the path of a request with these headers. Raises PageRefused."""


class PageGate:
    """The gate before some `pages`. With a `key` only its holders are answered. `port` makes the
    cookie's name, which browsers share between ports."""

    def __init__(self, pages: Pages, *, key: str, port: int) -> None:
        self._pages, self._key = pages, key
        self._cookie = f"asyncrl_page_{port}"

    def known(self, headers: Headers) -> bool:
        """True for a client that may stay connected: one that is answered at all."""
        return self._with_cookie(headers) if self._key else _host(headers) in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            answer = await self._answer(scope)
        except PageRefused as refused:
            text = f"{refused}\n".encode(errors="replace")
            answer = PageAnswer(refused.status, "text/plain; charset=utf-8", text)
        headers = [
            *ALWAYS.items(),
            *answer.headers,
            (b"content-type", answer.kind.encode()),
            (b"content-length", str(len(answer.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope) -> PageAnswer:
        headers = scope["headers"]
        # as Python has the names of files: a run's may be no UTF-8
        path = unquote(scope["raw_path"].decode("latin-1"), errors="surrogateescape")
        if scope["method"] not in ("GET", "HEAD"):
            raise PageRefused(405, "a page is only read, by GET")
        if not self._key and _host(headers) not in LOOPBACK:
            raise PageRefused(421, "this page is on loopback: ask http://127.0.0.1")
        if self._key and not self._with_cookie(headers):
            return self._with_key(scope)
        if path == "/favicon.ico":
            return PageAnswer(204, "image/x-icon", b"")
        return await self._pages(path, headers)

    def _with_cookie(self, headers: Headers) -> bool:
        pairs = b"; ".join(value for name, value in headers if name == b"cookie").split(b";")
        name = self._cookie.encode() + b"="
        given = (pair.strip().removeprefix(name) for pair in pairs if pair.strip().startswith(name))
        return any(hmac.compare_digest(one, self._key.encode()) for one in given)

    def _with_key(self, scope: Scope) -> PageAnswer:
        """Give who asks `/?key=…` the cookie."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[-1]
        if scope["raw_path"] != b"/" or not hmac.compare_digest(
            given.encode(errors="surrogatepass"), self._key.encode()
        ):
            raise PageRefused(401, "this page has a key: open the address that asyncrl said first")
        cookie = f"{self._cookie}={self._key}; HttpOnly; SameSite=Strict; Path=/"
        # no redirection: a browser would not send a strict cookie on one that another site began
        go = page(
            "asyncrl",
            style(),
            tag(
                "main",
                tag("h1", "asyncrl"),
                tag("p", tag("a", "open the page", href="/")),
            ),
        )
        return PageAnswer(200, HTML, go.encode(), ((b"set-cookie", cookie.encode()),))


def script(path: str) -> PageAnswer:
    """The answer to the path of a script. Raises PageRefused."""
    if (name := path.removeprefix(ASSETS)) not in SCRIPTS:
        raise PageRefused(404, "there is no such script")
    return PageAnswer(200, "text/javascript; charset=utf-8", asset(name).encode())


def _host(headers: Headers) -> str:
    """The host that a request names, without its port."""
    named = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
    host, colon, port = named.rpartition(":")
    return (host if colon and whole(port) is not None else named).lower()
