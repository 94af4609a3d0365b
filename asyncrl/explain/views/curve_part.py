"""The curves of a run: which charts there are, and their numbers. `assets/charts.js` draws them,
for page and report alike, from what is written in the element.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from asyncrl.explain.sft_figures import LOSS
from asyncrl.explain.views.curve_columns import CurveNumbers
from asyncrl.explain.views.html_page import Html, joined, tag
from asyncrl.explain.views.seen_run import SeenRun

Unit = Literal["number", "share", "count", "seconds"]
"""The unit of a chart: how its numbers are written, and where its axis begins."""


class ChartLine(msgspec.Struct, frozen=True):
    """A line of a chart: its name, and its column."""

    name: str
    column: str


class Chart(msgspec.Struct, frozen=True):
    """A chart of lines over the rows of one table."""

    title: str
    unit: Unit
    lines: list[ChartLine]
    table: Literal["steps", "evaluations"] = "steps"


def _chart(title: str, unit: Unit, **lines: str) -> Chart:
    """A chart of lines by their columns."""
    return Chart(title, unit, [ChartLine(name, column) for column, name in lines.items()])


CHARTS = (
    _chart("Reward", "number", reward="mean", exact="fully right"),
    _chart("Loss", "number", loss="loss"),
    _chart("Gradient norm", "number", grad_norm="gradient norm"),
    _chart("Entropy (nats a token)", "number", entropy="entropy"),
    _chart("Response length (tokens)", "number", response_tokens="mean length"),
    _chart("KL to the behaviour policy (nats)", "number", k3="k3"),
    _chart(
        "Clipped, rejected, cut off",
        "share",
        clipped="clipped",
        rejected="rejected",
        truncated="cut off",
    ),
    _chart("Learning rate", "number", lr="learning rate"),
    _chart("Lag (versions)", "number", lag_mean="mean", lag_max="largest"),
    _chart("On policy, effective share", "share", on_policy="lag 0", ess="effective"),
    _chart("Tokens/s", "count", generated_per_s="generated", trained_per_s="trained"),
    _chart("Tokens that teach", "share", teach="trained of generated"),
    _chart("Idle", "share", idle_trainer="trainer", idle_rollout="engines"),
    _chart("Step and pause", "seconds", step_seconds="optimizer", pause_seconds="decoding pause"),
    _chart("Queue (rollouts)", "count", queue_rollouts="waiting"),
)
SUPERVISED = ("Loss", "Gradient norm", "Learning rate", "Tokens/s", "Idle", "Step and pause")
"""Charts of a run that samples nothing."""


def curves(seen: SeenRun) -> Html:
    """The curves, or a sentence where there is none yet. Raises ConfigError."""
    lines, supervised = seen.curves, seen.files.supervised
    charts = [*_evaluated(lines.evaluations, supervised)]
    charts += [chart for chart in CHARTS if not supervised or chart.title in SUPERVISED]
    tables = {"steps": lines.steps, "evaluations": lines.evaluations}
    charts = [chart for chart in charts if _has(chart, tables[chart.table])]
    if not charts:
        return tag("p", "There is no step yet. The curves begin with the first.", class_="dim")
    used = {line.column for chart in charts for line in chart.lines} | {"version", "seconds"}
    said: dict[str, Any] = {
        "charts": charts,
        **{
            name: {column: values for column, values in table.items() if column in used}
            for name, table in tables.items()
        },
    }
    numbers = msgspec.json.encode(said).decode()
    return joined(
        tag("div", class_="charts", data_curves=numbers),
        tag("noscript", "The curves are drawn by scripts, which are off here."),
    )


def _evaluated(numbers: CurveNumbers, supervised: bool) -> list[Chart]:
    """The chart of accuracy, and of what else an evaluation measured, in up to two."""
    if supervised:
        lines = [ChartLine("held-out loss", LOSS)]
        return [Chart("Held-out loss (nats a token)", "number", lines, "evaluations")]
    figures = [name for name in numbers if name not in ("version", "seconds", "accuracy")]
    lines = [ChartLine("accuracy", "accuracy"), *(ChartLine(name, name) for name in figures)]
    return [Chart("Held-out accuracy", "share", lines[:6], "evaluations")]


def _has(chart: Chart, numbers: CurveNumbers) -> bool:
    return any(value is not None for line in chart.lines for value in numbers.get(line.column, []))
