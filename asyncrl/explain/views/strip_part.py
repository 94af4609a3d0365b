"""The strip of figures: what matters most of a run, each with what it was and a small curve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from asyncrl.explain.conditions.sides import IDLE
from asyncrl.explain.diagnosis import idle
from asyncrl.explain.views.curve_columns import CurveNumbers
from asyncrl.explain.views.html_page import Html, tag
from asyncrl.explain.views.seen_run import SeenRun
from asyncrl.explain.views.spark_line import spark_line
from asyncrl.words import NONE, count, duration, number, share

OTHERS = {
    "zero_variance": "in groups of equal rewards",
    "stale": "too old",
    "evaluation": "of evaluations",
}
"""Reasons for which most tokens are not trained, in words."""
LATELY = 10
"""Rows of the curve that a figure of now is the mean of."""


class StripFigure(NamedTuple):
    """A figure: its name, what it is now, what to compare it with, and its curve. One that `warns`
    is coloured."""

    name: str
    now: str
    beside: str
    curve: list[float | None]
    warns: bool = False


def strip(seen: SeenRun) -> Html:
    """The figures of the run. Raises ConfigError."""
    figures = _supervised(seen) if seen.files.supervised else _figures(seen)
    return tag("ul", *map(_tile, figures), class_="strip")


def _tile(figure: StripFigure) -> Html:
    return tag(
        "li",
        tag("span", figure.name, class_="label"),
        tag("b", figure.now),
        tag("span", figure.beside, class_="dim"),
        spark_line(figure.curve),
        class_="tile warns" if figure.warns else "tile",
    )


def _figures(seen: SeenRun) -> Iterator[StripFigure]:
    steps, figures = seen.curves.steps, seen.figures
    yield _accuracy(seen)
    yield StripFigure(
        "Reward",
        number(_lately(steps, "reward")),
        f"{number(figures.reward_first)} at first" if figures.reward_first is not None else "",
        steps.get("reward", []),
    )
    exact = _lately(steps, "exact")
    yield StripFigure(
        "Fully right",
        share(exact),
        "of training answers",
        steps.get("exact", []),
    )
    generated, trained = _rates(seen)
    yield StripFigure(
        "Tokens/s",
        count(generated),
        f"generated; {count(trained)} trained",
        steps.get("generated_per_s", []),
    )
    teach = _lately(steps, "teach")
    discarded = figures.tokens.discarded
    most = max(discarded, key=lambda reason: discarded[reason], default="")
    yield StripFigure(
        "Tokens that teach",
        share(teach),
        f"most others: {OTHERS.get(most, most)}" if most else "of those generated",
        steps.get("teach", []),
        warns=teach is not None and teach < 0.5,
    )
    on_policy = _lately(steps, "on_policy")
    yield StripFigure(
        "Lag",
        number(_lately(steps, "lag_mean")),
        f"versions; {share(on_policy)} on policy, most {figures.lag_max}",
        steps.get("lag_mean", []),
    )
    yield _idle(seen, "trainer", "Trainer idle", "idle_trainer")
    yield _idle(seen, "rollout", "Engines idle", "idle_rollout")


def _accuracy(seen: SeenRun) -> StripFigure:
    figures = seen.figures
    known = [one for one in figures.evaluations if one.accuracy is not None]
    curve: list[float | None] = [one.accuracy for one in known]
    if not known:
        yet = "not evaluated" if seen.live is None else "not evaluated yet"
        return StripFigure("Held-out accuracy", NONE, yet, [])
    beside = f"{_exact(known[0].accuracy)} at first"
    best, last = figures.best, known[-1]
    if best is not None and _exact(best.accuracy) != _exact(last.accuracy):
        beside += f"; best {_exact(best.accuracy)} at {best.version}"
    return StripFigure("Held-out accuracy", _exact(last.accuracy), beside, curve)


def _exact(accuracy: float | None) -> str:
    """The share as a person reads it; almost all is not all.

    >>> _exact(0.996), _exact(0.9999), _exact(0.75), _exact(1.0)
    ('99.6%', '99.9%', '75%', '100%')
    """
    if accuracy is not None and 0.995 <= accuracy < 1:
        return f"{min(accuracy, 0.999):.1%}"
    return share(accuracy)


def _rates(seen: SeenRun) -> tuple[float | None, float | None]:
    """Generated and trained tokens a second: of a run that goes on those of the last seconds, of
    one that is over the means."""
    if (live := seen.live) is not None:
        return live.generated_per_s, live.trained_per_s
    return seen.figures.generated_per_s, seen.figures.trained_per_s


def _idle(seen: SeenRun, role: str, name: str, column: str) -> StripFigure:
    curve = seen.curves.steps.get(column, [])
    if (live := seen.live) is not None:
        part = idle(live, role)  # type: ignore[arg-type]  # one of two roles
        beside = f"over the last {duration(live.window_s)}"
    else:
        figures = seen.figures
        part = figures.idle_trainer if role == "trainer" else figures.idle_rollout
        beside = "since its last start"
    return StripFigure(name, share(part), beside, curve, part is not None and part >= IDLE)


def _supervised(seen: SeenRun) -> Iterator[StripFigure]:
    """The figures of a run of `asyncrl sft`, which samples nothing."""
    curves, figures = seen.curves, seen.figures
    first, last = figures.held_out_loss or (None, None)
    held_out = curves.evaluations.get("loss", [])
    beside = f"{number(first, 3)} at first" if first is not None else "nats a token"
    yield StripFigure("Held-out loss", number(last, 3), beside, held_out)
    loss = curves.steps.get("loss", [])
    yield StripFigure("Loss", number(_lately(curves.steps, "loss"), 3), "nats a token", loss)
    norm = curves.steps.get("grad_norm", [])
    yield StripFigure("Gradient norm", number(_lately(curves.steps, "grad_norm"), 3), "", norm)
    rates = curves.steps.get("trained_per_s", [])
    yield StripFigure("Tokens/s", count(_rates(seen)[1]), "trained", rates)
    yield _idle(seen, "trainer", "Trainer idle", "idle_trainer")


def _lately(numbers: CurveNumbers, column: str) -> float | None:
    """The mean of the last LATELY rows that are known."""
    known = [value for value in numbers.get(column, [])[-LATELY:] if value is not None]
    return sum(known) / len(known) if known else None
