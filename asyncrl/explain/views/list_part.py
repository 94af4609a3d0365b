"""The runs of a folder as a table: the newest first, each with how it stands, how far it is, its
accuracy, and what it cost.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from asyncrl.config import ConfigError
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.run_list import HEAD, name_in, run_cells, runs_in
from asyncrl.explain.views.head_part import state, task_and_model
from asyncrl.explain.views.html_page import Html, joined, tag
from asyncrl.explain.views.seen_run import SeenRun
from asyncrl.words import NONE, count

COLUMNS = ("run", "state", *HEAD[2:-1], "task", "model")


def run_table(folder: Path, now: float, most: int) -> Html:
    """The newest `most` runs, of which status, summary and the end of the curve are read. Raises
    ConfigError where the folder cannot be read."""
    found = runs_in(folder)
    if not found:
        return tag("p", f"There is no run in {folder} yet.", class_="dim")
    head = tag(
        "tr", tag("th", "compare", scope="col"), *(tag("th", one, scope="col") for one in COLUMNS)
    )
    rows = (_row(name_in(folder, files), files, now) for files in found[:most])
    more = len(found) - most
    return joined(
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll"),
        tag("p", tag("button", "Compare", type="button", id="runs-compare", disabled="")),
        *([tag("p", f"And {count(more)} older ones.", class_="dim")] if more > 0 else []),
    )


def _row(name: str, files: RunFiles, now: float) -> Html:
    seen = SeenRun(files.path, now)
    word, colour, task, model = "damaged", "bad", NONE, NONE
    with suppress(ConfigError):
        word, colour = state(seen)
    with suppress(ConfigError):
        task, model = task_and_model(files.settings)
    link = tag("a", name, href=f"run/{quote(os.fsencode(name), safe='')}/")
    pick = tag("input", type="checkbox", data_run=name, aria_label=f"compare {name}")
    return tag(
        "tr",
        tag("td", pick if name.isprintable() else ""),
        tag("td", link),
        tag("td", tag("span", word, class_=f"pill {colour}")),
        *(tag("td", cell) for cell in (*run_cells(files, now), task, model)),
    )
