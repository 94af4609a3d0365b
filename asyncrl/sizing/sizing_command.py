"""`asyncrl simulate run.toml` and `asyncrl calibrate RUN`: a run on a cluster, forecast."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from asyncrl.config import Config, ConfigError
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
    found = read_models(models)
    cluster = Cluster(
        engines or config.rollout.actors, trainers or max(1, config.train.ranks), price
    )
    show = _progress()
    if search:
        recommended = recommend(config, found, cluster, hours, say=show)
        show("")
        return _json(recommended), recommendation_rows(recommended)
    came = forecast(config, found, cluster, hours, say=lambda share: show(f"{share:.0%}"))
    show("")
    return _json(came), [*forecast_rows(came), *(("left out", text) for text in ASSUMED)]


def _json(found: Forecast | Recommendation) -> str:
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def _progress() -> Callable[[str], None]:
    """A line on stderr that says how far it is, from QUIET_S seconds on; "" clears it."""
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
    found = calibrate(runs)
    path = output or runs[0] / CLUSTER_MODELS
    if path.exists():
        raise ConfigError(f"{path}: it is there already; give another file with --output.")
    write_models(found.models, path, found.notes)
    return path


def forecast_rows(found: Forecast) -> list[Row]:
    """A forecast for people."""
    lag = ", ".join(f"{lag}: {share:.1%}" for lag, share in found.lag.items())
    waste = ", ".join(f"{why} {share:.1%}" for why, share in found.waste.items())
    rows: list[Row] = [
        ("cluster", f"{found.engines:,} engines, {found.trainers:,} trainers"),
        ("steps", f"{found.steps_per_hour:,.1f} an hour, {found.step_s:,.1f} s each"),
        ("idle", f"engines {found.idle_engines:.1%}, trainers {found.idle_trainer:.1%}"),
        *_lent(found),
        ("slots that decode", f"{found.busy_slots:.1%}"),
        ("tokens/s", f"{found.generated_per_s:,.0f} generated, {found.trained_per_s:,.0f} trained"),
        ("lag, of tokens", f"{found.lag_mean:.2f} in the mean, {found.lag_max} at most; {lag}"),
        ("never trained", f"{found.wasted:.1%}" + (f": {waste}" if waste else "")),
        ("1,000 steps", f"{found.device_hours:,.0f} device-hours" + _cost(found)),
        (
            "measured",
            f"{found.steps} steps in {found.hours:.2f} virtual hours; {found.events:,} events, a "
            f"simulated token stands for {found.grain}",
        ),
    ]
    return rows


def _lent(found: Forecast) -> list[Row]:
    """A row about the trainers' cores, where these are lent."""
    if found.idle_trainer_cores == found.idle_trainer:
        return []
    return [("trainers' cores", f"idle {found.idle_trainer_cores:.1%}, as engines have them too")]


def _cost(found: Forecast) -> str:
    return "" if found.cost is None else f", {found.cost:,.2f}"


def recommendation_rows(found: Recommendation) -> list[Row]:
    """A recommendation for people: what was tried, and what is best."""

    def row(name: str, one: Tried) -> Row:
        came = one.forecast
        return (
            name,
            f"{came.engines}:{came.trainers}",
            f"{came.trained_per_s:,.0f}",
            f"{came.idle_engines:.0%}",
            f"{came.idle_trainer:.0%}",
            f"{came.lag_mean:.2f}",
            f"{came.wasted:.1%}",
            f"{came.device_hours:,.0f}" + _cost(came),
            " ".join(one.candidate.sets()) or "as it is",
        )

    given, best = found.given.forecast, found.best.forecast
    faster = best.trained_per_s / given.trained_per_s
    words = (
        f"{best.engines} engines, {best.trainers} trainers",
        " ".join(f"--set {text}" for text in found.best.candidate.sets()) or "settings as they are",
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
    tried = f"tried, at 1/{found.part}" if found.part > 1 else "tried"
    return [
        heads,
        *(row(tried, one) for one in found.tried),
        row("as it is", found.given),
        row("recommended", found.best),
        ("", *[""] * (len(heads) - 2), ""),
        ("recommended", *[""] * (len(heads) - 2), "; ".join(words)),
    ]
