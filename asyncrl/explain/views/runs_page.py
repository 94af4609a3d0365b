"""The page of a folder of runs: a list of them, and the page of each below its name. Invariant:
what is kept of runs that somebody looked at is bounded, and so is what the list costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import trio

from asyncrl.config import ConfigError
from asyncrl.explain.run_list import runs_in
from asyncrl.explain.views.assets import linked_scripts, style
from asyncrl.explain.views.html_page import Html, joined, page, tag
from asyncrl.explain.views.list_part import run_table
from asyncrl.explain.views.page_gate import ASSETS, HTML, PageAnswer, PageRefused, script
from asyncrl.explain.views.run_page import RunPage
from asyncrl.runtime.httpd.asgi import Headers
from asyncrl.runtime.ipc.waits import Waits

RUN = "run/"
LIST = "part/runs"
KEPT = 12
"""Runs whose curves are kept, those that somebody looked at last."""
LISTED = 200
"""Runs that are listed, the newest."""
REST = 400.0
"""Times the processor time of the list for which it is not made again."""


class RunsPage:
    """The page of a folder. `now` is in seconds since 1970."""

    def __init__(self, folder: Path, *, waits: Waits, now: Callable[[], float] = time.time) -> None:
        self._folder, self._waits, self._now = folder, waits, now
        self._pages: dict[str, RunPage] = {}
        self._turn = trio.Lock()
        self._listed, self._due = b"", 0.0

    async def __call__(self, path: str, headers: Headers) -> PageAnswer:
        """Answer to a path: the list, or what is below the name of a run. Raises PageRefused."""
        path = path.removeprefix("/")
        if not path:
            return PageAnswer(200, HTML, self._whole().encode())
        if path.startswith(ASSETS):
            return script(path)
        if path == LIST:
            return PageAnswer(200, HTML, await self._list())
        name, slash, rest = path.removeprefix(RUN).partition("/")
        if path.startswith(RUN) and slash:
            return await self._of(unquote(name))(f"/{rest}", headers)
        raise PageRefused(404, "there is no such page; the list of runs is at /")

    def _of(self, name: str) -> RunPage:
        """The page of a run. Names are those of the folder's own entries: there is no way out of
        it. Raises PageRefused."""
        found = self._pages.pop(name, None)
        if found is None:
            try:
                inside = name in {files.path.name for files in runs_in(self._folder)}
            except ConfigError as error:
                raise PageRefused(404, str(error)) from None
            if not inside:
                raise PageRefused(404, "there is no such run in this folder")
            back = tag("a", "asyncrl / runs", href="../../", class_="brand", data_runs="")
            found = RunPage(self._folder / name, waits=self._waits, now=self._now, beside=back)
        self._pages[name] = found  # behind those that were looked at before
        while len(self._pages) > KEPT:
            del self._pages[next(iter(self._pages))]
        return found

    def _whole(self) -> str:
        folder = self._folder.absolute()
        asked = tag("p", "loading …", class_="dim")
        bar = tag(
            "div",
            tag("span", "asyncrl", class_="brand"),
            tag("span", "not updated yet", id="heard", role="status", class_="dim"),
            tag("button", "Pause updates", id="hold", type="button", aria_pressed="false"),
            class_="bar",
            role="region",
            aria_label="this page",
        )
        heading = tag("header", tag("section", tag("div", tag("h1", "Runs"), class_="title")))
        body = tag("main", tag("section", asked, id="runs", data_every=4.0, class_="whole"))
        return page(
            f"asyncrl: {folder.name}",
            style(),
            joined(bar, heading, body),
            scripts=linked_scripts(),
        )

    async def _list(self) -> bytes:
        async with self._turn:
            if not self._listed or trio.current_time() >= self._due:
                took_s = await trio.to_thread.run_sync(self._make_list)
                self._due = trio.current_time() + max(0.9, REST * took_s)
            return self._listed

    def _make_list(self) -> float:
        began = time.thread_time()
        body: Html
        try:
            body = run_table(self._folder, self._now(), LISTED)
        except ConfigError as error:
            body = tag("p", str(error), class_="dim")
        section = tag("section", body, id="runs", data_every=4.0, class_="whole")
        self._listed = f"<!doctype html><meta charset=utf-8><title>runs</title>{section}".encode()
        return time.thread_time() - began
