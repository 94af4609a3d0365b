"""The page of a folder of runs: a list of them, the page of each below its name, and what tells
some of them apart. Invariant: what is kept of runs that somebody looked at is bounded, and so is
what the list costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from asyncrl.config import ConfigError
from asyncrl.explain.game_runs import why_game
from asyncrl.explain.run_files import is_game
from asyncrl.explain.run_list import name_in, runs_in
from asyncrl.explain.views.assets import linked_scripts, style
from asyncrl.explain.views.compare import compare, rows
from asyncrl.explain.views.html_page import Html, joined, page, table, tag
from asyncrl.explain.views.list_part import run_table
from asyncrl.explain.views.made_part import MadePart
from asyncrl.explain.views.page_gate import ASSETS, HTML, PageAnswer, PageRefused, script
from asyncrl.explain.views.run_page import RunPage, document, in_time
from asyncrl.runtime.httpd.asgi import Headers
from asyncrl.runtime.ipc.waits import Waits

RUN = "run/"
LIST = "part/runs"
COMPARED = "compared/"
MOST_COMPARED = 6
"""Runs that are compared at a time."""
KEPT = 12
"""Runs whose curves are kept, and comparisons, those that somebody looked at last."""
LISTED = 200
"""Runs that are listed, the newest."""
REST = 400.0
"""Times the processor time of the list, or of a comparison, for which it is not made again."""


class RunsPage:
    """The page of a folder, or of a game. `now` is in seconds since 1970."""

    def __init__(self, folder: Path, *, waits: Waits, now: Callable[[], float] = time.time) -> None:
        self._folder, self._waits, self._now = folder, waits, now
        self._pages: dict[str, RunPage] = {}
        self._compared: dict[tuple[str, ...], MadePart] = {}
        self._listed = MadePart(self._list, REST)

    async def __call__(self, path: str, headers: Headers) -> PageAnswer:
        """Answer to a path, which is decoded: the list, a comparison, or what is below the name of
        a run. Raises PageRefused."""
        path = path.removeprefix("/")
        if not path:
            return PageAnswer(200, HTML, self._whole().encode())
        if path.startswith(ASSETS):
            return script(path)
        if path == LIST:
            return await self._answer(self._listed)
        if path.startswith(COMPARED):
            return await self._answer(self._comparison(self._names(path.removeprefix(COMPARED))))
        if path.startswith(RUN):
            name, slash, rest = self._named(path.removeprefix(RUN))
            if slash:
                return await self._of(name)(f"/{rest}", headers)
        raise PageRefused(404, "there is no such page; the list of runs is at /")

    def _of(self, name: str) -> RunPage:
        """The page of a run. Names are those of the folder's own entries: there is no way out of
        it. Raises PageRefused."""
        found = self._pages.pop(name, None)
        if found is None:
            self._inside([name])
            back = tag("a", "asyncrl / runs", href="../../", class_="brand", data_runs="")
            found = RunPage(self._folder / name, waits=self._waits, now=self._now, beside=back)
        self._pages[name] = found  # behind those that were looked at before
        while len(self._pages) > KEPT:
            del self._pages[next(iter(self._pages))]
        return found

    def _named(self, path: str) -> tuple[str, str, str]:
        """The name that a path begins with, its slash, and what is behind: a policy's name has that
        of its game before it."""
        name, slash, rest = path.partition("/")
        if slash and _is_game(self._folder / name):
            policy, slash, rest = rest.partition("/")
            name = f"{name}/{policy}"
        return name, slash, rest

    def _names(self, path: str) -> list[str]:
        """The names of which a path consists."""
        names, slash = list[str](), "/"
        while slash:
            name, slash, path = self._named(path)
            names.append(name)
        return names

    def _inside(self, names: Sequence[str]) -> None:
        """Raise PageRefused unless all of these are runs of the folder."""
        try:
            inside = {name_in(self._folder, files) for files in runs_in(self._folder)}
        except ConfigError as error:
            raise PageRefused(404, str(error)) from None
        if not inside.issuperset(names):
            raise PageRefused(404, "there is no such run in this folder")

    def _comparison(self, names: Sequence[str]) -> MadePart:
        """The comparison of these runs. Raises PageRefused."""
        key = (*dict.fromkeys(names),)
        if not 2 <= len(key) <= MOST_COMPARED:
            raise PageRefused(404, f"2 to {MOST_COMPARED} runs can be compared at a time")
        found = self._compared.pop(key, None)
        if found is None:
            self._inside(key)
            found = MadePart(partial(self._compare, key), REST)
        self._compared[key] = found
        while len(self._compared) > KEPT:
            del self._compared[next(iter(self._compared))]
        return found

    async def _answer(self, part: MadePart) -> PageAnswer:
        with in_time(self._waits):
            return PageAnswer(200, HTML, await part.body())

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
        title = f"Game {folder.name}" if _is_game(folder) else "Runs"
        heading = tag("header", tag("section", tag("div", tag("h1", title), class_="title")))
        body = tag("main", tag("section", asked, id="runs", data_every=4.0, class_="whole"))
        return page(
            f"asyncrl: {folder.name}",
            style(),
            joined(bar, heading, body),
            scripts=linked_scripts(),
        )

    def _list(self) -> bytes:
        body: Html
        try:
            body = run_table(self._folder, self._now(), LISTED)
            if is_game(self._folder):
                said = (tag("li", sentence) for sentence in why_game(self._folder, self._now()))
                body = joined(body, tag("ul", *said))
        except ConfigError as error:
            body = tag("p", str(error), class_="dim")
        return document("runs", tag("section", body, id="runs", data_every=4.0, class_="whole"))

    def _compare(self, names: Sequence[str]) -> bytes:
        """The settings in which runs differ, and their figures, as `asyncrl compare` has them."""
        try:
            head, *found = rows(compare([self._folder / name for name in names]))
        except ConfigError as error:
            return document("compared", tag("p", str(error), class_="dim"))
        return document("compared", tag("div", table(found, head), class_="scroll"))


def _is_game(path: Path) -> bool:
    """True for the directory of a game; a path of somebody else, or that can be none, is not."""
    with suppress(ConfigError):
        return is_game(path)
    return False
