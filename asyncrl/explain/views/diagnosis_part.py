"""The diagnosis of a run: what limits it, in one sentence, and what to change. `asyncrl why` says
the same."""

from __future__ import annotations

from asyncrl.explain.views.html_page import Html, joined, tag
from asyncrl.explain.views.seen_run import SeenRun
from asyncrl.explain.why import why

SAID_BY_HEAD = ("goes on", "ended")
"""States of which the head says what the first sentence does."""


def diagnosis(seen: SeenRun) -> Html:
    """The sentences, the one that matters first. Raises ConfigError."""
    if seen.standing == "begins":
        return tag("p", "The run is starting, or preparing its model. It is shown as it begins.")
    sentences = why(seen.files, seen.now)
    if seen.standing in SAID_BY_HEAD:
        sentences = sentences[1:]
    sentences = [*reversed(sentences[:2]), *sentences[2:]] if seen.live else sentences
    changes = [change for change in seen.figures.changes if change not in sentences]
    if not sentences and not changes:
        return tag("p", "The run ended well, and its numbers suggest no change.", class_="first")
    first, *rest = [*sentences, *changes]
    return joined(
        tag("p", first, class_="first"),
        tag("ul", *(tag("li", sentence) for sentence in rest)) if rest else joined(),
    )
