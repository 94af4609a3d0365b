"""`asyncrl report RUN`: a run as one HTML page, which needs nothing beside itself. It is what the
page of a run (`run_page.py`) shows at one moment, by the same parts, scripts and style sheet.
"""

from __future__ import annotations

from pathlib import Path

from asyncrl.config import ConfigError
from asyncrl.config.errors import usable
from asyncrl.config.paths import refuse_as_output
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.assets import SCRIPTS, asset, style, written_scripts
from asyncrl.explain.views.html_page import page
from asyncrl.explain.views.page_frame import frame
from asyncrl.explain.views.rollout_table import written
from asyncrl.explain.views.run_parts import PARTS
from asyncrl.explain.views.seen_run import SeenRun, moment
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
    parts = {name: part.of(seen, name) for name, part in PARTS.items()}
    try:
        texts = [written(seen.rollouts.known())]
    except ConfigError:  # its part says why
        texts = []
    name = run.absolute().name
    return page(
        f"asyncrl: {name}",
        style(),
        frame(parts, heard=f"written at {moment(now)}"),
        *texts,
        scripts=written_scripts(),
        written=[asset(script) for script in SCRIPTS],
    )
