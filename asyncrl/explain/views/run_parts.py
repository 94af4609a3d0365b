"""The parts that a report has at one moment, and a page as long as the run lives.

What a file of the run does not say is left out, and why is said in its place: a report of a run
that failed early is wanted most.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

from asyncrl.config import ConfigError
from asyncrl.explain.curve import StepPoint
from asyncrl.explain.diagnosis import duration
from asyncrl.explain.display import summary_rows
from asyncrl.explain.run_status import RunStatus
from asyncrl.explain.summary import Summary
from asyncrl.explain.views.flow_part import flow, table
from asyncrl.explain.views.html_page import Html, joined, tag
from asyncrl.explain.views.plots import line_plot
from asyncrl.explain.views.rollout_part import rollouts
from asyncrl.explain.views.run_figures import RunFigures, read_summary, run_figures
from asyncrl.explain.views.seen_curve import SeenCurve, SeenCurves
from asyncrl.explain.why import read_status, why


class SeenRun:
    """The directory of a run at the moment `now`, in seconds since 1970. Each file is read once,
    when it is asked for first; of the `curve` what was added since it was read last."""

    def __init__(self, run: Path, now: float, curve: SeenCurve | None = None) -> None:
        self.run, self.now = run, now
        self._curve = SeenCurve(run) if curve is None else curve

    @cached_property
    def figures(self) -> RunFigures:
        """The numbers of the run. Raises ConfigError."""
        with self._curve.renewed() as sums:
            return run_figures(self.run, sums)

    @cached_property
    def summary(self) -> Summary | None:
        """The summary of a run that ended. Raises ConfigError."""
        return read_summary(self.run)

    @cached_property
    def status(self) -> RunStatus:
        """The state that the run was in last. Raises ConfigError."""
        return read_status(self.run)[0]

    @cached_property
    def curves(self) -> SeenCurves:
        """The lines of the run's curve. Raises ConfigError."""
        return self._curve.lines()


class RunPart(msgspec.Struct, frozen=True):
    """A part: its `title`, empty for the first, what makes it of a run, and the seconds after which
    a page asks for it again. It is not made again for `rest` times the processor time that it took.
    What `make` raises as ConfigError is said in its place."""

    title: str
    make: Callable[[SeenRun], Html]
    every_s: float
    rest: float = 1000.0

    def of(self, seen: SeenRun, name: str) -> Html:
        """The part under its name."""
        try:
            body = self.make(seen)
        except ConfigError as error:
            body = tag("p", str(error), class_="dim")
        heading = [tag("h2", self.title)] if self.title else []
        return tag("section", *heading, body, id=name, data_every=self.every_s)


def _standing(seen: SeenRun) -> Html:
    return joined(*(tag("p", sentence) for sentence in why(seen.run, seen.now)))


def _changes(seen: SeenRun) -> Html:
    changes = seen.figures.changes or ["The numbers of this run suggest no change."]
    return joined(*(tag("p", change) for change in changes))


def _happened(seen: SeenRun) -> Html:
    return _rows(summary_rows(seen.summary) if seen.summary is not None else _so_far(seen.figures))


def _rows(rows: list[tuple[str, str]]) -> Html:
    return tag("table", *(tag("tr", tag("th", name), tag("td", value)) for name, value in rows))


def _so_far(figures: RunFigures) -> list[tuple[str, str]]:
    """Rows for a run without a summary."""
    of = f" of {figures.steps}" if figures.steps is not None else ""
    best = figures.best
    return [
        ("run", figures.standing),
        ("steps", f"{figures.step}{of} in {figures.seconds:,.0f} s"),
        ("best accuracy", f"{best.accuracy:.3f}, version {best.version}" if best else "–"),
    ]


# ------------------------------------------------------------------------------------------ curves


def _plots(seen: SeenRun) -> Html:
    plots = (line_plot(title, "version", named) for title, named in seen.curves.series.items())
    return tag("div", *plots, class_="plots")


# ---------------------------------------------------------------------------------------- accounts


def _idle(seen: SeenRun) -> Html:
    """Idle shares of each role by cause, over the last seconds, and of the whole life."""
    status, figures = seen.status, seen.figures
    rows = [
        _metered(f"{role}, {cause}", share)
        for role, causes in status.idle.items()
        for cause, share in sorted(causes.items(), key=lambda item: -item[1])
    ]
    whole = [
        _metered(f"{name}, since it began", share)
        for name, share in (("trainer", figures.idle_trainer), ("rollout", figures.idle_rollout))
        if share is not None
    ]
    note = f"By cause: of the last {status.window_s:.0f} seconds of what is known of the run."
    return joined(tag("table", *whole, *rows), tag("p", note, class_="dim"))


def _ledger(seen: SeenRun) -> Html:
    """Shares of the generated tokens, by what became of them."""
    tokens = seen.figures.tokens
    parts = [("trained", tokens.trained), *tokens.discarded.items(), ("live", tokens.live)]
    whole = tokens.generated or 1
    rows = [_metered(name, count / whole, f"{count:,}") for name, count in parts]
    return tag("table", *rows, _row("generated", f"{tokens.generated:,}", Html("")))


def _metered(name: str, share: float, more: str = "") -> Html:
    meter = tag("meter", f"{share:.0%}", value=f"{min(1.0, max(0.0, share)):.4f}")
    return _row(name, f"{more} ({share:.1%})" if more else f"{share:.1%}", meter)


def _row(name: str, value: str, meter: Html) -> Html:
    return tag("tr", tag("th", name), tag("td", value), tag("td", meter))


def _publications(seen: SeenRun) -> Html:
    """The last versions: when their steps were made, and for how long decoding stood still at the
    publication before. The one under way is in the flow."""
    rows = [
        tag("tr", *(tag("td", said) for said in _published(point, seen.now)))
        for point in reversed(seen.curves.last)
    ]
    names = ("version", "made", "in", "of", "pause before")
    return table(names, rows) if rows else tag("p", "None but the first yet.", class_="dim")


def _published(point: StepPoint, now: float) -> tuple[str, ...]:
    pause = point.pause_seconds
    return (
        f"{point.version}",
        f"{duration(max(0.0, now - point.at))} ago",
        f"{point.step_seconds:.2f} s",
        f"{point.trained:,} tokens",
        "–" if pause is None else f"{1000 * pause:.0f} ms",
    )


def _alarms(seen: SeenRun) -> Html:
    if seen.summary is not None and seen.summary.alarms:
        return _rows(
            [
                (f"{name}, {alarmed.steps} steps", alarmed.last)
                for name, alarmed in seen.summary.alarms.items()
            ]
        )
    steps = [
        (f"version {point.version}", ", ".join(point.alarms))
        for point in reversed(seen.curves.alarmed)
    ]
    count = seen.figures.alarms
    return (
        joined(tag("p", f"{count} steps raised an alarm."), _rows(steps))
        if count
        else tag("p", "None.")
    )


PARTS = {
    "standing": RunPart("", _standing, 2.0),
    "changes": RunPart("What to change next", _changes, 10.0),
    "flow": RunPart("The flow", lambda seen: flow(seen.status), 2.0),
    "happened": RunPart("What happened", _happened, 5.0),
    "curves": RunPart("Curves", _plots, 5.0),
    "time": RunPart("Where time went", _idle, 5.0),
    "tokens": RunPart("Where tokens went", _ledger, 5.0),
    "publications": RunPart("Publications", _publications, 5.0),
    "alarms": RunPart("Alarms", _alarms, 5.0),
    "rollouts": RunPart(
        "Newest rollouts",
        lambda seen: tag("div", rollouts(seen.run), class_="said"),
        10.0,
        rest=400.0,  # the dear one, which may take seconds
    ),
}
"""The parts, in their order, by the names that they have in a page."""
