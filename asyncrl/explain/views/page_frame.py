"""The frame of a run's page and report: what is around its parts."""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl.explain.views.html_page import Html, joined, tag
from asyncrl.explain.views.run_parts import PARTS

HEADING = ("head",)
"""Parts in the heading, which stays in sight."""


def frame(
    parts: Mapping[str, Html], *, heard: str, live: bool = False, beside: Html | None = None
) -> Html:
    """The parts in their frame. `heard` says of when they are. A `live` page can be held as it is;
    `beside` the name of the page are its ways to others."""
    links = [tag("a", part.title, href=f"#{name}") for name, part in PARTS.items() if part.title]
    held = tag("button", "Pause updates", id="hold", type="button", aria_pressed="false")
    bar = tag(
        "div",
        beside or tag("span", "asyncrl", class_="brand"),
        tag("nav", *links, aria_label="parts"),
        tag("span", heard, id="heard", role="status", class_="dim"),
        *([held] if live else []),
        class_="bar",
        role="region",
        aria_label="this page",
    )
    heading = (parts[name] for name in HEADING)
    rest = (part for name, part in parts.items() if name not in HEADING)
    return joined(bar, tag("header", *heading), tag("main", *rest))
