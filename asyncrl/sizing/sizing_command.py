"""`asyncrl simulate run.toml` and `asyncrl calibrate RUN`: a run on a cluster, forecast."""

from __future__ import annotations

import difflib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TextIO

import msgspec

from asyncrl.config import Config, ConfigError
from asyncrl.config.paths import exists, refuse_as_output
from asyncrl.runtime.run_dir import CLUSTER_MODELS
from asyncrl.sizing.calibrate import calibrate
from asyncrl.sizing.cluster_models import ClusterModel, read_models, write_models
from asyncrl.sizing.effort import QUICK, WHOLE
from asyncrl.sizing.forecast import ASSUMED, Cluster, Forecast, forecast
from asyncrl.sizing.presets import PRESETS, preset
from asyncrl.sizing.recommendation import Recommendation, Tried, recommend

QUIET_S = 2.0
"""Seconds of work before its progress is shown."""
LINE_S = 15.0
"""Seconds between two lines of progress in a file or a pipe."""

Row = tuple[str, ...]


class Sized(NamedTuple):
    """A forecast or a recommendation, as JSON and as rows for people. `whole` is False if the user
    ended it: then it is of what was simulated until then."""

    json: str
    rows: list[Row]
    whole: bool


def size(
    config: Config,
    models: Path,
    engines: int | None,
    trainers: int | None,
    hours: float,
    *,
    price: float | None,
    search: bool,
    exact: bool = False,
) -> Sized:
    """Forecast a run, or search for a better one; with `exact` simulate all of it. Raises
    ConfigError."""
    cluster_models, origin = models_of(models, config)
    cluster = Cluster(
        engines or config.rollout.actors, trainers or max(1, config.train.ranks), price
    )
    progress = SizingProgress(sys.stderr)
    if search:
        recommended = recommend(config, cluster_models, cluster, hours, say=progress.show)
        progress.clear()
        return Sized(_json(recommended), recommendation_rows(recommended), True)
    with halting() as halted:
        result = forecast(
            config,
            cluster_models,
            cluster,
            hours,
            say=progress.share,
            effort=WHOLE if exact else QUICK,
            halted=halted,
        )
    progress.clear()
    rows = [*forecast_rows(result), ("models", origin), *(("left out", text) for text in ASSUMED)]
    return Sized(_json(result), rows, result.whole)


def models_of(named: Path, config: Config) -> tuple[ClusterModel, str]:
    """The models in a file, or of the preset of that name where there is no such file, and words on
    their origin. Raises ConfigError."""
    if exists(named) or len(named.parts) > 1 or named.suffix == ".toml":
        return read_models(named), str(named)
    name = str(named).lower()
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 1)
        meant = f"did you mean {near[0]}" if near else f"the presets are {', '.join(PRESETS)}"
        raise ConfigError(f"--models {named}: there is no such file, and no such preset; {meant}?")
    cluster_models = preset(name, config)
    return cluster_models, (
        f"preset {name}: published and derived numbers, compared with runs on H100s alone "
        f"(docs/sizing.md); assumed are responses of {cluster_models.length.mean:,.0f} tokens in "
        f"the mean, and {cluster_models.verdict.accepted:.0%} of groups whose rewards differ"
    )


def _json(result: Forecast | Recommendation) -> str:
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


class SizingProgress:
    """One line of progress on a terminal, written over itself; elsewhere a line now and then. It is
    quiet for the first QUIET_S seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._began = clock()
        self._due = self._began + (QUIET_S if self._terminal else LINE_S)
        self._shown = 0

    def share(self, share: float) -> None:
        """Show the share of the work that is done, from 0 to 1, and an estimate of what is left."""
        spent = self._clock() - self._began
        left = f", {spent * (1 - share) / share:,.0f} s left at most" if share > 0 else ""
        self.show(f"simulating: {share:.0%}{left}")

    def show(self, text: str) -> None:
        """Show what is being done."""
        if (now := self._clock()) < self._due:
            return
        if self._terminal:
            self._stream.write(f"\r{text:<{self._shown}}")
            self._shown = len(text)
        else:
            self._stream.write(f"{text}\n")
            self._due = now + LINE_S
        self._stream.flush()

    def clear(self) -> None:
        """Wipe the line on a terminal."""
        if self._shown:
            self._stream.write(f"\r{'':<{self._shown}}\r")
            self._stream.flush()


@contextmanager
def halting() -> Iterator[Callable[[], bool]]:
    """Have the first Ctrl-C in the block only noted; the function that the block gets says whether
    it came. The second one is a KeyboardInterrupt."""
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)


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
        ("confidence", _confidence(result)),
        (
            "measured",
            f"{result.steps} steps in {result.hours:.2f} virtual hours; {result.events:,} events"
            + (f"; 1/{result.part} of the cluster" if result.part > 1 else "")
            + (f"; a simulated token stands for {result.grain}" if result.grain > 1 else ""),
        ),
    ]
    return rows


def _lent(result: Forecast) -> list[Row]:
    """A row about the trainers' cores, if these are lent."""
    if result.idle_trainer_cores == result.idle_trainer:
        return []
    return [("trainers' cores", f"idle {result.idle_trainer_cores:.1%}, as engines have them too")]


def _confidence(result: Forecast) -> str:
    """Words on how well the mean step is known; the models' own errors are not in them."""
    known = "too few steps to say" if result.spread is None else f"± {result.spread:.1%}"
    ended = "" if result.whole else "; ended by Ctrl-C: of what was simulated until then"
    return f"{known} of the mean step (95 %), if the models are right{ended}"


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
