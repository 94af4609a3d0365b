"""The parts of a run's page, and of its report: the same functions make both.

What a file of the run does not say is left out, and why is said in its place: a report of a run
that failed early is wanted most.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from asyncrl.config import ConfigError
from asyncrl.explain.views import accounts_part
from asyncrl.explain.views.curve_part import curves
from asyncrl.explain.views.diagnosis_part import diagnosis
from asyncrl.explain.views.flow_part import flow, who_waits
from asyncrl.explain.views.head_part import head
from asyncrl.explain.views.html_page import Html, tag
from asyncrl.explain.views.rollout_table import rollouts
from asyncrl.explain.views.seen_run import SeenRun
from asyncrl.explain.views.settings_part import settings
from asyncrl.explain.views.strip_part import strip

UNSAMPLED = "A supervised run samples nothing."


class RunPart(msgspec.Struct, frozen=True):
    """A part: its `title`, empty for one that needs none, what makes it of a run, and the seconds
    after which a page asks for it again. It is not made again for `rest` times the processor time
    that it took. One of what was `sampled` is not of a supervised run. Where it is `half` as wide
    as the page, another is beside it.
    What `make` raises as ConfigError is said in its place."""

    title: str
    make: Callable[[SeenRun], Html]
    every_s: float
    rest: float = 2000.0
    sampled: bool = False
    half: bool = False

    def of(self, seen: SeenRun, name: str) -> Html:
        """The part under its name."""
        try:
            supervised = self.sampled and seen.files.supervised
            body = tag("p", UNSAMPLED, class_="dim") if supervised else self.make(seen)
        except ConfigError as error:
            body = tag("p", str(error), class_="dim")
        return self.section(name, body)

    def section(self, name: str, body: Html) -> Html:
        """The part with this body."""
        heading = [tag("h2", self.title)] if self.title else []
        wide = "half" if self.half else "whole"
        return tag("section", *heading, body, id=name, data_every=self.every_s, class_=wide)


PARTS = {
    "head": RunPart("", head, 2.0),
    "figures": RunPart("", strip, 4.0),
    "diagnosis": RunPart("", diagnosis, 5.0),
    "curves": RunPart("Curves", curves, 8.0),
    "flow": RunPart("Flow", lambda seen: flow(seen.said_status), 4.0, sampled=True),
    "rollouts": RunPart(
        "Rollouts",
        rollouts,
        15.0,
        rest=400.0,  # the dear one, which may take seconds
        sampled=True,
    ),
    "totals": RunPart("Totals", accounts_part.totals, 10.0, half=True),
    "tokens": RunPart("Tokens", accounts_part.tokens, 10.0, sampled=True, half=True),
    "time": RunPart("Time", accounts_part.time, 10.0, half=True),
    "publications": RunPart(
        "Publications", accounts_part.publications, 10.0, sampled=True, half=True
    ),
    "alarms": RunPart("Alarms", accounts_part.alarms, 10.0, half=True),
    "waits": RunPart("Waits", lambda seen: who_waits(seen.said_status), 10.0, sampled=True),
    "settings": RunPart("Settings", settings, 600.0),
}
"""The parts, in their order, by the names that they have in a page."""
FIRST_SCREEN = ("head", "figures", "diagnosis", "curves")
"""Parts that are in sight before anybody scrolls."""
