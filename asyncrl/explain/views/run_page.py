"""The page of one run, which lives or is over: its parts, made when somebody asks. Invariant: it
only reads.

Parts are asked for one by one, each with the digest of what the browser has, and one that has not
changed is not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import trio

from asyncrl.config import ConfigError
from asyncrl.explain.views.assets import linked_scripts, style
from asyncrl.explain.views.html_page import Html, page, tag
from asyncrl.explain.views.kept_rollouts import KeptRollouts
from asyncrl.explain.views.made_part import MadePart
from asyncrl.explain.views.page_frame import frame
from asyncrl.explain.views.page_gate import ASSETS, HTML, PageAnswer, PageRefused, script
from asyncrl.explain.views.rollout_part import rollout_detail
from asyncrl.explain.views.rollout_table import older
from asyncrl.explain.views.run_parts import PARTS
from asyncrl.explain.views.seen_curve import SeenCurve
from asyncrl.explain.views.seen_run import SeenRun
from asyncrl.runtime.httpd.asgi import Headers
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.words import whole

PART = "part/"
ROLLOUT = "rollout/"
OLDER = "older/"
OWNER = "the page"
MADE_S = 300.0
"""Seconds that a question waits for its part at most."""


class RunPage:
    """The page of the run in a directory. `now` is in seconds since 1970. Its way to other pages is
    `beside` its name."""

    def __init__(
        self,
        run: Path,
        *,
        waits: Waits,
        now: Callable[[], float] = time.time,
        beside: Html | None = None,
    ) -> None:
        self._run, self._waits, self._now, self._beside = run, waits, now, beside
        self._curve, self._rollouts = SeenCurve(run), KeptRollouts(run)
        self._parts = {
            name: MadePart(partial(self._make, name), part.rest) for name, part in PARTS.items()
        }
        self._reading = trio.Lock()

    async def __call__(self, path: str, headers: Headers) -> PageAnswer:
        """Answer to a path, which begins with `/`, the page itself. Raises PageRefused."""
        path = path.removeprefix("/")
        if not path:
            return PageAnswer(200, HTML, self._whole().encode())
        if path.startswith(ASSETS):
            return script(path)
        if path.startswith(PART) and (name := path.removeprefix(PART)) in PARTS:
            return await self._part(name, headers)
        if path.startswith(ROLLOUT):
            number, _, end = path.removeprefix(ROLLOUT).partition("/")
            return await self._read(partial(self._rollout, whole(number), whole(end)))
        if path.startswith(OLDER) and path.count("/") >= 4:
            until, column, order, words = path.removeprefix(OLDER).split("/", 3)
            return await self._read(partial(self._older, whole(until), column, order, words))
        raise PageRefused(404, "there is no such page; the run's is at /")

    def _whole(self) -> str:
        """The page, with parts that its script is to ask for."""
        asked = tag("p", "loading …", class_="dim")
        parts = {name: part.section(name, asked) for name, part in PARTS.items()}
        return page(
            f"asyncrl: {self._run.absolute().name}",
            style(),
            frame(parts, heard="not updated yet", live=True, beside=self._beside),
            scripts=linked_scripts(),
        )

    async def _part(self, name: str, headers: Headers) -> PageAnswer:
        with in_time(self._waits):
            body = await self._parts[name].body()
        digest = b'"' + sha256(body).hexdigest()[:32].encode() + b'"'
        if any(key == b"if-none-match" and value == digest for key, value in headers):
            return PageAnswer(304, HTML, b"", ((b"etag", digest),))
        return PageAnswer(200, HTML, body, ((b"etag", digest),))

    def _make(self, name: str) -> bytes:
        seen = SeenRun(self._run, self._now(), self._curve, self._rollouts)
        return document(name, PARTS[name].of(seen, name))

    async def _read(self, make: Callable[[], bytes]) -> PageAnswer:
        """Read from the journal for one who asks, one at a time."""
        with in_time(self._waits):
            async with self._reading:
                body = await trio.to_thread.run_sync(make)
        return PageAnswer(200, HTML, body)

    def _rollout(self, number: int | None, end: int | None) -> bytes:
        """A rollout with all of its text."""
        with refused():
            one = None if number is None else self._rollouts.one(number, end)
            if one is None:
                raise PageRefused(404, "this rollout is not in the table any more")
            texts = self._rollouts.known().texts
            return document(f"rollout {number}", rollout_detail(one, texts))

    def _older(self, until: int | None, column: str, order: str, words: str) -> bytes:
        """Rows of rollouts that ended before those of the table."""
        if until is None:
            raise PageRefused(404, "an event is a number")
        with refused():
            rows = older(self._rollouts, until, column, order == "down", words)
            return document("older rollouts", rows)


@contextmanager
def refused() -> Iterator[None]:
    """Refuse what cannot be read."""
    try:
        yield
    except ConfigError as error:
        raise PageRefused(404, str(error)) from None


@contextmanager
def in_time(waits: Waits) -> Iterator[None]:
    """Refuse an answer that takes too long."""
    try:
        with waits.on("a part of the page", owner=OWNER, deadline_s=MADE_S):
            yield
    except WaitExpired:
        raise PageRefused(503, "this takes too long; try again") from None


def document(title: str, body: Html) -> bytes:
    """A piece as a whole document, so that a browser knows its characters, and that it is no
    script's."""
    return f"<!doctype html><meta charset=utf-8>{tag('title', title)}{body}".encode()
