"""Files that browsers are given: style sheets, scripts, and the library that draws charts.

Invariant: they are part of the package, and a page asks for nothing else. What others wrote has
its origin, version, licence and digest in VENDORED alone.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from asyncrl.explain.views.html_page import Html


class VendoredFile(NamedTuple):
    """A file that is shipped as its authors made it."""

    origin: str
    version: str
    licence: str
    sha256: str


VENDORED = {
    "uplot/uPlot.iife.min.js": VendoredFile(
        "https://registry.npmjs.org/uplot/-/uplot-1.6.32.tgz",
        "1.6.32",
        "MIT",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    ),
    "uplot/uPlot.min.css": VendoredFile(
        "https://registry.npmjs.org/uplot/-/uplot-1.6.32.tgz",
        "1.6.32",
        "MIT",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
}
STYLES = ("uplot/uPlot.min.css", "frame.css", "parts.css", "rollouts.css")
SCRIPTS = (
    "locale.js",
    "uplot/uPlot.iife.min.js",
    "chart.js",
    "overlays.js",
    "charts.js",
    "differences.js",
    "rollouts.js",
    "page.js",
)
"""Scripts, in the order in which they run. Each is a plain script that gives one name to those
behind it, so that a report has them in itself as the page has them from its server."""


@cache
def asset(name: str) -> str:
    """The text of a file."""
    return files("asyncrl.explain.views").joinpath("assets", *name.split("/")).read_text("utf-8")


@cache
def style() -> str:
    """The style sheet of page and report."""
    return "\n".join(map(asset, STYLES))


def linked_scripts() -> list[Html]:
    """The scripts of a page, which its server has beside it."""
    return [Html(f'<script src="assets/{name}" defer></script>') for name in SCRIPTS]


def written_scripts() -> list[Html]:
    """The scripts of a report, written in it."""
    return [Html(f"<script>{asset(name)}</script>") for name in SCRIPTS]
