"""`asyncrl report RUN`: a run as one HTML page, which needs nothing beside itself. It is what the
page of a run (`run_page.py`) shows at one moment.
"""

from __future__ import annotations

from pathlib import Path

from asyncrl.config.errors import usable
from asyncrl.config.paths import refuse_as_output
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.html_page import page, tag
from asyncrl.explain.views.run_parts import PARTS, SeenRun
from asyncrl.explain.views.style import STYLE
from asyncrl.files import write_whole

REPORT = "report.html"
"""The file in a run's directory, where no other is named."""


def write_report(run: Path, path: Path | None, now: float) -> Path:
    """Write the report of a run, whole or not at all, over an earlier one; returns its path. `now`
    is in seconds since 1970. Raises ConfigError."""
    if path is not None:
        refuse_as_output(path, over=True)
    text = report(run, now)
    path = run / REPORT if path is None else path
    with usable(path, "written"):
        write_whole(path, text)
    return path


def report(run: Path, now: float) -> str:
    """The report of a run as HTML. Raises ConfigError for what is no run, or whose settings or
    curve cannot be read."""
    RunFiles(run)  # what is no run is said first
    seen = SeenRun(run, now)
    _ = seen.figures, seen.curves  # without these there is no report
    parts = [part.of(seen, name) for name, part in PARTS.items()]
    return page(f"asyncrl: {run.name}", STYLE, tag("main", tag("h1", run.name), *parts))
