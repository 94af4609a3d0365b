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
from asyncrl.explain.rows import figure_rows, summary_rows
from asyncrl.explain.run_figures import RunFigures, run_figures
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.flow_part import flow
from asyncrl.explain.views.html_page import Html, joined, meter, table, tag
from asyncrl.explain.views.plots import line_plot
from asyncrl.explain.views.rollout_part import rollouts
from asyncrl.explain.views.seen_curve import HELD_OUT, SUPERVISED, SeenCurve, SeenCurves
from asyncrl.explain.why import why
from asyncrl.words import count, duration, share

UNSAMPLED = "A supervised run samples nothing."


class SeenRun:
    """The directory of a run at the moment `now`, in seconds since 1970. Each file is read once,
    when it is asked for first; of the `curve` what was added since it was read last."""

    def __init__(self, run: Path, now: float, curve: SeenCurve | None = None) -> None:
        self.run, self.now = run, now
        self._curve = SeenCurve(run) if curve is None else curve

    @cached_property
    def files(self) -> RunFiles:
        """The files of the run. Raises ConfigError."""
        return RunFiles(self.run)

    @cached_property
    def figures(self) -> RunFigures:
        """The numbers of the run. Raises ConfigError."""
        with self._curve.renewed() as sums:
            return run_figures(self.files, sums)

    @cached_property
    def curves(self) -> SeenCurves:
        """The lines of the run's curve. Raises ConfigError."""
        return self._curve.lines()


class RunPart(msgspec.Struct, frozen=True):
    """A part: its `title`, empty for the first, what makes it of a run, and the seconds after which
    a page asks for it again. It is not made again for `rest` times the processor time that it took.
    One of what was `sampled` is not of a supervised run.
    What `make` raises as ConfigError is said in its place."""

    title: str
    make: Callable[[SeenRun], Html]
    every_s: float
    rest: float = 1000.0
    sampled: bool = False

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
        return tag("section", *heading, body, id=name, data_every=self.every_s)


def _standing(seen: SeenRun) -> Html:
    return joined(*(tag("p", sentence) for sentence in why(seen.files, seen.now)))


def _changes(seen: SeenRun) -> Html:
    changes = seen.figures.changes or ["The numbers of this run suggest no change."]
    return joined(*(tag("p", change) for change in changes))


def _happened(seen: SeenRun) -> Html:
    summary = seen.files.summary
    losses = seen.files.supervised
    figures = seen.figures
    return table(figure_rows(figures, losses=losses) if summary is None else summary_rows(summary))


# ------------------------------------------------------------------------------------------ curves


def _plots(seen: SeenRun) -> Html:
    shown = seen.curves.series
    of_losses = (HELD_OUT, *SUPERVISED)
    if seen.files.supervised:
        shown = {title: shown[title] for title in (*of_losses, "tokens/s")}
    else:
        shown = {title: named for title, named in shown.items() if title not in of_losses}
    plots = (line_plot(title, "version", named) for title, named in shown.items())
    return tag("div", *plots, class_="plots")


# ---------------------------------------------------------------------------------------- accounts


def _idle(seen: SeenRun) -> Html:
    """Idle shares of each role by cause, over the last seconds, and of the whole life."""
    status, figures = seen.files.status, seen.figures
    whole = [
        (f"{name}, since it began", part)
        for name, part in (("trainer", figures.idle_trainer), ("rollout", figures.idle_rollout))
        if part is not None
    ]
    by_cause = [
        (f"{role}, {cause}", part)
        for role, causes in status.idle.items()
        for cause, part in sorted(causes.items(), key=lambda item: -item[1])
    ]
    note = f"By cause, over the last {duration(status.window_s)}."
    rows = ((name, share(part), meter(part)) for name, part in whole + by_cause)
    return joined(table(rows), tag("p", note, class_="dim"))


def _ledger(seen: SeenRun) -> Html:
    """Shares of the generated tokens, by what became of them."""
    tokens = seen.figures.tokens
    parts = [("trained", tokens.trained), *tokens.discarded.items(), ("live", tokens.live)]
    whole = tokens.generated or 1
    rows = [
        (name, f"{count(part)} ({share(part / whole)})", meter(part / whole))
        for name, part in parts
    ]
    return table([*rows, ("generated", count(tokens.generated), "")])


def _publications(seen: SeenRun) -> Html:
    """The last versions: when their steps were made, and for how long decoding stood still at the
    publication before. The one under way is in the flow."""
    rows = [
        (
            f"{point.version}",
            f"{duration(max(0.0, seen.now - point.at))} ago",
            duration(point.step_seconds),
            f"{count(point.trained)} tokens",
            duration(point.pause_seconds),
        )
        for point in reversed(seen.curves.last)
    ]
    names = ("version", "made", "in", "of", "pause before")
    return table(rows, names) if rows else tag("p", "None but the first yet.", class_="dim")


def _alarms(seen: SeenRun) -> Html:
    if (summary := seen.files.summary) is not None and summary.alarms:
        return table(
            (f"{name}, {alarmed.steps} steps", alarmed.last)
            for name, alarmed in summary.alarms.items()
        )
    if not (raised := seen.figures.alarms):
        return tag("p", "None.")
    steps = (
        (f"version {point.version}", ", ".join(point.alarms))
        for point in reversed(seen.curves.alarmed)
    )
    return joined(tag("p", f"{count(raised)} steps raised an alarm."), table(steps))


PARTS = {
    "standing": RunPart("", _standing, 2.0),
    "changes": RunPart("What to change next", _changes, 10.0),
    "flow": RunPart("The flow", lambda seen: flow(seen.files.status), 2.0, sampled=True),
    "happened": RunPart("What happened", _happened, 5.0),
    "curves": RunPart("Curves", _plots, 5.0),
    "time": RunPart("Where time went", _idle, 5.0),
    "tokens": RunPart("Where tokens went", _ledger, 5.0, sampled=True),
    "publications": RunPart("Publications", _publications, 5.0, sampled=True),
    "alarms": RunPart("Alarms", _alarms, 5.0),
    "rollouts": RunPart(
        "Newest rollouts",
        lambda seen: tag("div", rollouts(seen.files), class_="said"),
        10.0,
        rest=400.0,  # the dear one, which may take seconds
        sampled=True,
    ),
}
"""The parts, in their order, by the names that they have in a page."""
