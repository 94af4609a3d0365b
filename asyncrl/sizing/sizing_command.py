"""`asyncrl simulate run.toml` and `asyncrl calibrate RUN`: a run on a cluster, forecast."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from asyncrl.config import Config
from asyncrl.config.paths import exists, refuse_as_output
from asyncrl.runtime.run_dir import CLUSTER_MODELS
from asyncrl.sizing.calibrate import calibrate
from asyncrl.sizing.cluster_models import read_models, write_models
from asyncrl.sizing.forecast import ASSUMED, Cluster, Forecast, forecast
from asyncrl.sizing.recommendation import Recommendation, Tried, recommend

QUIET_S = 2.0
"""Seconds of work before its progress is shown."""

Row = tuple[str, ...]


def size(
    config: Config,
    models: Path,
    engines: int | None,
    trainers: int | None,
    hours: float,
    *,
    price: float | None,
    search: bool,
) -> tuple[str, list[Row]]:
    """Forecast a run, or search for a better one. Returns it as JSON, and as rows for people.
    Raises ConfigError."""
    cluster_models = read_models(models)
    cluster = Cluster(
        engines or config.rollout.actors, trainers or max(1, config.train.ranks), price
    )
    show = _progress()
    if search:
        recommended = recommend(config, cluster_models, cluster, hours, say=show)
        show("")
        return _json(recommended), recommendation_rows(recommended)
    result = forecast(
        config, cluster_models, cluster, hours, say=lambda share: show(f"{share:.0%}")
    )
    show("")
    return _json(result), [*forecast_rows(result), *(("left out", text) for text in ASSUMED)]


def _json(result: Forecast | Recommendation) -> str:
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def _progress() -> Callable[[str], None]:
    """A line of progress on stderr, from QUIET_S seconds on; "" clears it."""
    began, shown = time.monotonic(), 0

    def show(text: str) -> None:
        nonlocal shown
        if time.monotonic() - began > QUIET_S and (text or shown):
            end = "\r" if not text else ""
            print(f"\r{text:<{shown}}", end=end, file=sys.stderr, flush=True)
            shown = len(text)

    return show


def fit(runs: Sequence[Path], output: Path | None) -> Path:
    """Fit models from runs and write them. Returns the path of the file. Raises ConfigError."""
    path = output or runs[0] / CLUSTER_MODELS
    if output or exists(path):
        refuse_as_output(path)
    calibration = calibrate(runs)
    write_models(calibration.models, path, calibration.notes)
    return path


def forecast_rows(result: Forecast) -> list[Row]:
    """A forecast for people."""
    lag = ", ".join(f"{lag}: {share:.1%}" for lag, share in result.lag.items())
    waste = ", ".join(f"{why} {share:.1%}" for why, share in result.waste.items())
    rows: list[Row] = [
        ("cluster", f"{result.engines:,} engines, {result.trainers:,} trainers"),
        ("steps", f"{result.steps_per_hour:,.1f} an hour, {result.step_s:,.1f} s each"),
        ("idle", f"engines {result.idle_engines:.1%}, trainers {result.idle_trainer:.1%}"),
        *_lent(result),
        ("slots that decode", f"{result.busy_slots:.1%}"),
        (
            "tokens/s",
            f"{result.generated_per_s:,.0f} generated, {result.trained_per_s:,.0f} trained",
        ),
        ("lag, of tokens", f"{result.lag_mean:.2f} in the mean, {result.lag_max} at most; {lag}"),
        ("never trained", f"{result.wasted:.1%}" + (f": {waste}" if waste else "")),
        ("1,000 steps", f"{result.device_hours:,.0f} device-hours" + _cost(result)),
        (
            "measured",
            f"{result.steps} steps in {result.hours:.2f} virtual hours; {result.events:,} events, "
            f"a simulated token stands for {result.grain}",
        ),
    ]
    return rows


def _lent(result: Forecast) -> list[Row]:
    """A row about the trainers' cores, if these are lent."""
    if result.idle_trainer_cores == result.idle_trainer:
        return []
    return [("trainers' cores", f"idle {result.idle_trainer_cores:.1%}, as engines have them too")]


def _cost(result: Forecast) -> str:
    return "" if result.cost is None else f", {result.cost:,.2f}"


def recommendation_rows(recommended: Recommendation) -> list[Row]:
    """A recommendation for people: what was tried, and what is best."""

    def row(name: str, entry: Tried) -> Row:
        result = entry.forecast
        return (
            name,
            f"{result.engines}:{result.trainers}",
            f"{result.trained_per_s:,.0f}",
            f"{result.idle_engines:.0%}",
            f"{result.idle_trainer:.0%}",
            f"{result.lag_mean:.2f}",
            f"{result.wasted:.1%}",
            f"{result.device_hours:,.0f}" + _cost(result),
            " ".join(entry.candidate.sets()) or "as it is",
        )

    given, best = recommended.given.forecast, recommended.best.forecast
    faster = best.trained_per_s / given.trained_per_s
    words = (
        f"{best.engines} engines, {best.trainers} trainers",
        " ".join(f"--set {text}" for text in recommended.best.candidate.sets())
        or "settings as they are",
        f"{faster:.2f} times as many trained tokens a second on as many devices",
        f"mean lag {best.lag_mean:.2f} in place of {given.lag_mean:.2f}",
    )
    heads = (
        "",
        "engines:trainers",
        "trained/s",
        "engines idle",
        "trainers idle",
        "lag",
        "never trained",
        "device-hours of 1,000 steps",
        "settings",
    )
    tried = f"tried, at 1/{recommended.part}" if recommended.part > 1 else "tried"
    return [
        heads,
        *(row(tried, entry) for entry in recommended.tried),
        row("as it is", recommended.given),
        row("recommended", recommended.best),
        ("", *[""] * (len(heads) - 2), ""),
        ("recommended", *[""] * (len(heads) - 2), "; ".join(words)),
    ]
