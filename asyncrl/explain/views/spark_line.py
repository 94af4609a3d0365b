"""A small curve without axes beside a number, as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncrl.explain.views.html_page import Html, tag

WIDTH, HEIGHT = 120, 30
EDGE = 2
POINTS = 60
"""Points that it has at most."""


def spark_line(values: Sequence[float | None]) -> Html:
    """The finite values, the first at the left; empty where there are fewer than two."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return Html("")
    each = math.ceil(len(known) / POINTS)
    chunks = [known[max(0, end - each) : end] for end in range(len(known), 0, -each)][::-1]
    means = [sum(chunk) / len(chunk) for chunk in chunks]
    low, high = min(means), max(means)
    span = high - low

    def place(number: int, value: float) -> str:
        across = EDGE + (WIDTH - 2 * EDGE) * number / max(1, len(means) - 1)
        up = (value - low) / span if span > 0 else 0.5
        return f"{across:.1f},{EDGE + (HEIGHT - 2 * EDGE) * (1 - up):.1f}"

    points = " ".join(place(number, value) for number, value in enumerate(means))
    return tag(
        "svg",
        tag("polyline", points=points),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
        class_="spark",
    )
