"""The runs of a folder as a table: the newest first, each with how it stands, how far it is, its
accuracy, and what it cost.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from asyncrl.config import ConfigError
from asyncrl.config.errors import usable
from asyncrl.explain.curve import EvaluationPoint, point_of
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.run_list import runs_in
from asyncrl.explain.views.head_part import state, task_and_model
from asyncrl.explain.views.html_page import Html, joined, tag
from asyncrl.explain.views.seen_run import SeenRun, moment
from asyncrl.files import open_regular
from asyncrl.runtime.run_dir import METRICS
from asyncrl.words import NONE, clock, count, duration, share

TAIL = 2**17
"""Bytes at the end of a curve in which its last evaluation is looked for."""
COLUMNS = ("run", "state", "step", "accuracy", "worked", "devices", "task", "model", "began")


def run_table(folder: Path, now: float, most: int) -> Html:
    """The newest `most` runs, of which status, summary and the end of the curve are read. Raises
    ConfigError where the folder cannot be read."""
    found = runs_in(folder)
    if not found:
        return tag("p", f"There is no run in {folder} yet.", class_="dim")
    head = tag(
        "tr", tag("th", "compare", scope="col"), *(tag("th", one, scope="col") for one in COLUMNS)
    )
    rows = (_row(files, now) for files in found[:most])
    more = len(found) - most
    return joined(
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll"),
        tag("p", tag("button", "Compare", type="button", id="runs-compare", disabled="")),
        *([tag("p", f"And {count(more)} older ones.", class_="dim")] if more > 0 else []),
    )


def _row(files: RunFiles, now: float) -> Html:
    seen = SeenRun(files.path, now)
    name = files.path.name
    word, colour, step, accuracy, worked, devices, began = "damaged", "bad", *([NONE] * 5)
    task = model = NONE
    with suppress(ConfigError):
        word, colour = state(seen)
    with suppress(ConfigError):
        task, model = task_and_model(files.settings)
    with suppress(ConfigError):
        if (status := files.last_status) is not None:
            step = f"{count(status.step)}/{count(status.steps)}"
            worked = clock(status.seconds)
            began = moment(status.at - status.seconds)[:16]
            engines = sum(actor.role == "rollout" for actor in status.actors)
            trainers = sum(actor.role == "trainer" for actor in status.actors)
            if actors := engines + trainers:
                devices = f"{trainers} + {engines}, {duration(status.seconds * actors)}"
    with suppress(ConfigError):
        accuracy = share(last_accuracy(files.path))
        if (summary := files.summary) is not None:
            worked = clock(summary.seconds)
    link = tag("a", name, href=f"run/{quote(name, safe='')}/")
    pick = tag("input", type="checkbox", data_run=name, aria_label=f"compare {name}")
    cells = (step, accuracy, worked, devices, task, model, began)
    return tag(
        "tr",
        tag("td", pick),
        tag("td", link),
        tag("td", tag("span", word, class_=f"pill {colour}")),
        *(tag("td", cell) for cell in cells),
    )


def last_accuracy(run: Path) -> float | None:
    """The held-out accuracy of the last evaluation, 0 to 1, where it is near the end of the curve.
    Raises ConfigError."""
    path = run / METRICS
    with usable(path, "read"), suppress(FileNotFoundError), open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        for line in reversed(file.read(TAIL).splitlines(keepends=True)):
            point = point_of(line)
            if isinstance(point, EvaluationPoint) and point.accuracy is not None:
                return point.accuracy
    return None
