"""Line plots as SVG, without any library: pure functions of numbers. Its style sheet is STYLE."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Sequence

from asyncrl.explain.views.html_page import Html, tag

WIDTH, HEIGHT = 420, 210
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 28
"""Room around a plot, in its own units."""
TICKS = 4
"""Steps between two ends of an axis, about."""
POINTS = 1000
"""Points of a series that are kept, at least; twice as many at most."""
STYLE = """
svg{width:100%;height:auto;display:block}
svg text{font:14px system-ui,sans-serif;fill:var(--dim)}
svg .grid{stroke:var(--line);stroke-width:1}
svg .s0,svg .s1{fill:none;stroke-width:2;stroke-linejoin:round}
svg .s0{stroke:var(--one)}svg .s1{stroke:var(--two)}
svg .d0{fill:var(--one)}svg .d1{fill:var(--two)}
"""


class PlotSeries:
    """Points (x, y) of one line, added in order, thinned out evenly where they are many. A number
    that is None or not finite is a gap."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.points: list[tuple[float, float | None]] = []
        self._every, self._added = 1, 0

    def add(self, x: float, y: float | None) -> None:
        """Put a point behind the others."""
        if self._added % self._every == 0:
            self.points.append((x, y if y is not None and math.isfinite(y) else None))
            if len(self.points) >= 2 * POINTS:
                self.points, self._every = self.points[::2], 2 * self._every
        self._added += 1

    def copy(self) -> PlotSeries:
        """The points by now, apart from those to come."""
        other = copy.copy(self)
        other.points = [*self.points]
        return other

    def drawn(self) -> list[list[tuple[float, float]]]:
        """The stretches of points between gaps."""
        stretches: list[list[tuple[float, float]]] = [[]]
        for x, y in self.points:
            if y is not None:
                stretches[-1].append((x, y))
            elif stretches[-1]:
                stretches.append([])
        return [stretch for stretch in stretches if stretch]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`, about TICKS steps of 1, 2 or 5 times a
    power of ten.

    >>> ticks(0.0, 7.0), ticks(0.13, 0.42)
    ([0.0, 2.0, 4.0, 6.0, 8.0], [0.1, 0.2, 0.3, 0.4, 0.5])
    """
    if high <= low:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = max((high - low) / TICKS, sys.float_info.min)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.75)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{step * n:.10g}") for n in range(first, last + 1)]


def line_plot(title: str, x_name: str, series: Sequence[PlotSeries]) -> Html:
    """A figure of at most two lines over one axis; empty where there is no point."""
    drawn = [one.drawn() for one in series]
    every = [point for stretches in drawn for stretch in stretches for point in stretch]
    if not every:
        return Html("")
    x_ticks = ticks(min(x for x, _ in every), max(x for x, _ in every))
    y_ticks = ticks(min(y for _, y in every), max(y for _, y in every))
    x_low, x_high = min(x for x, _ in every), max(x for x, _ in every)

    def across(x: float) -> float:
        share = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def down(y: float) -> float:
        share = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def parts() -> Iterator[Html]:
        yield tag("title", title)
        for y in y_ticks:
            at = down(y)
            yield tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at)
            yield tag("text", f"{y:g}", x=LEFT - 6, y=at + 4, text_anchor="end")
        for x in x_ticks:
            if x_low <= x <= x_high:
                yield tag("text", f"{x:g}", x=across(x), y=HEIGHT - 8, text_anchor="middle")
        for number, stretches in enumerate(drawn):
            for stretch in stretches:
                if len(stretch) == 1:
                    [(x, y)] = stretch
                    yield tag("circle", class_=f"d{number}", cx=across(x), cy=down(y), r=3)
                else:
                    points = " ".join(f"{across(x):g},{down(y):g}" for x, y in stretch)
                    yield tag("polyline", class_=f"s{number}", points=points)

    image = tag("svg", *parts(), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    legend = [
        tag("span", f"— {one.name}", class_=f"l{number}") for number, one in enumerate(series)
    ]
    names = legend if len(series) > 1 else []
    return tag("figure", tag("figcaption", f"{title}, by {x_name} ", *names), image)
