"""The page of a living run: an ASGI application that answers with the report's parts, made when
somebody asks. Invariant: it only reads; no part is made more often than its price allows, however
many look; and who has not the key, or names another host, gets nothing.

Parts are asked for one by one, each with the digest of what the browser has, and one that has not
changed is not sent again. Where the page is on loopback it has no key, and answers only to the
names of loopback: another web page, whose name was made to point here, is refused. Elsewhere the
key comes once, as `/?key=…`, and is a cookie from then on, so that no address that is shown, kept
or sent on has it.
"""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import trio

from asyncrl.explain.views.html_page import page, tag
from asyncrl.explain.views.run_parts import PARTS, SeenRun
from asyncrl.explain.views.seen_curve import SeenCurve
from asyncrl.explain.views.style import STYLE
from asyncrl.runtime.httpd.asgi import Headers, Receive, Scope, Send
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.words import whole

SCRIPT = "/page.js"
PART = "/part/"
OWNER = "the page"
AGAIN_S = 0.9
"""Seconds for which a part is not made again at least."""
MADE_S = 300.0
"""Seconds that a question waits for its part at most."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The names under which a page on loopback is asked for."""
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


class RunPage:
    """The page of the run in a directory. With a `key` only its holders are answered. `now` is in
    seconds since 1970; `port` makes the cookie's name, which browsers share between ports."""

    def __init__(
        self,
        run: Path,
        *,
        key: str,
        port: int,
        waits: Waits,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._key, self._waits, self._now = run, key, waits, now
        self._cookie = f"asyncrl_page_{port}"
        self._curve = SeenCurve(run)
        self._made: dict[str, bytes] = {}
        self._due = dict.fromkeys(PARTS, -math.inf)
        self._turns = {name: trio.Lock() for name in PARTS}
        self._script = files("asyncrl.explain.views").joinpath("page.js").read_bytes()

    def known(self, headers: Headers) -> bool:
        """True for a client that may stay connected: one that is answered at all."""
        return self._with_cookie(headers) if self._key else _host(headers) in LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """PageAnswer one request."""
        try:
            answer = await self._answer(scope)
        except PageRefused as refused:
            answer = PageAnswer(
                refused.status, "text/plain; charset=utf-8", f"{refused}\n".encode()
            )
        headers = [
            *ALWAYS.items(),
            *answer.headers,
            (b"content-type", answer.kind.encode()),
            (b"content-length", str(len(answer.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope) -> PageAnswer:
        headers, path = scope["headers"], scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            raise PageRefused(405, "a page is only read, by GET")
        if not self._key and _host(headers) not in LOOPBACK:
            raise PageRefused(421, "this page is on loopback: ask http://127.0.0.1")
        if self._key and not self._with_cookie(headers):
            return self._with_key(scope)
        if path == "/":
            return PageAnswer(200, "text/html; charset=utf-8", self._whole().encode())
        if path == SCRIPT:
            return PageAnswer(200, "text/javascript; charset=utf-8", self._script)
        if path == "/favicon.ico":
            return PageAnswer(204, "image/x-icon", b"")
        if path.startswith(PART) and (name := path.removeprefix(PART)) in PARTS:
            return await self._part(name, headers)
        raise PageRefused(404, "there is no such page; the run's is at /")

    def _with_cookie(self, headers: Headers) -> bool:
        pairs = b"; ".join(value for name, value in headers if name == b"cookie").split(b";")
        name = self._cookie.encode() + b"="
        given = (pair.strip().removeprefix(name) for pair in pairs if pair.strip().startswith(name))
        return any(hmac.compare_digest(one, self._key.encode()) for one in given)

    def _with_key(self, scope: Scope) -> PageAnswer:
        """Give who asks `/?key=…` the cookie."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[-1]
        if scope["path"] != "/" or not hmac.compare_digest(
            given.encode(errors="surrogatepass"), self._key.encode()
        ):
            raise PageRefused(401, "this page has a key: open the address that asyncrl train says")
        cookie = f"{self._cookie}={self._key}; HttpOnly; SameSite=Strict; Path=/"
        # no redirection: a browser would not send a strict cookie on one that another site began
        go = page(
            "asyncrl",
            STYLE,
            tag(
                "main",
                tag("h1", "asyncrl"),
                tag("p", tag("a", "open the page of the run", href="/")),
            ),
        )
        return PageAnswer(
            200, "text/html; charset=utf-8", go.encode(), ((b"set-cookie", cookie.encode()),)
        )

    def _whole(self) -> str:
        """The page, with parts that its script is to ask for."""
        links = [
            tag("a", part.title, href=f"#{name}") for name, part in PARTS.items() if part.title
        ]
        asked = tag("p", "is asked for …", class_="dim")
        parts = [part.section(name, asked) for name, part in PARTS.items()]
        bar = tag(
            "div",
            tag("button", "Pause updates", id="hold", type="button", aria_pressed="false"),
            tag("span", "not updated yet", id="heard", role="status", class_="dim"),
            class_="bar",
        )
        heading = tag("h1", self._run.name)
        return page(
            f"asyncrl: {self._run.name}",
            STYLE,
            tag("main", heading, bar, tag("nav", *links, aria_label="parts"), *parts),
            script=SCRIPT,
        )

    async def _part(self, name: str, headers: Headers) -> PageAnswer:
        try:
            with self._waits.on("a part of the page", owner=OWNER, deadline_s=MADE_S):
                body = await self._made_part(name)
        except WaitExpired:
            raise PageRefused(503, "this takes too long; try again") from None
        digest = b'"' + sha256(body).hexdigest()[:32].encode() + b'"'
        if any(key == b"if-none-match" and value == digest for key, value in headers):
            return PageAnswer(304, "text/html; charset=utf-8", b"", ((b"etag", digest),))
        return PageAnswer(200, "text/html; charset=utf-8", body, ((b"etag", digest),))

    async def _made_part(self, name: str) -> bytes:
        """The part as it is, or was not long ago. It is made in a thread, one at a time each, and
        who comes meanwhile is given what comes of it."""
        async with self._turns[name]:
            begun = trio.current_time()
            if name not in self._made or begun >= self._due[name]:
                body, took_s = await trio.to_thread.run_sync(self._make, name)
                self._made[name] = body
                self._due[name] = max(
                    begun + AGAIN_S, trio.current_time() + PARTS[name].rest * took_s
                )
            return self._made[name]

    def _make(self, name: str) -> tuple[bytes, float]:
        """A part, and the processor time that it took, in seconds."""
        began = time.thread_time()
        part = PARTS[name].of(SeenRun(self._run, self._now(), self._curve), name)
        # whole, so that a browser knows its characters, and that it is no script's
        whole = f"<!doctype html><meta charset=utf-8><title>{name}</title>{part}"
        return whole.encode(), time.thread_time() - began


def _host(headers: Headers) -> str:
    """The host that a request names, without its port."""
    named = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
    host, colon, port = named.rpartition(":")
    return (host if colon and whole(port) is not None else named).lower()
