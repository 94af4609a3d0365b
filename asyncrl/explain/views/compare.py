"""`asyncrl compare RUN RUN …`: runs side by side, the settings in which they differ first.

Settings are compared as the text of each run.toml has them. So no module that one names is
imported, and runs of two versions of asyncrl can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config import ConfigError
from asyncrl.config.load import settings_in
from asyncrl.config.setting import quoted
from asyncrl.escape import escaped_json
from asyncrl.explain.diagnosis import duration
from asyncrl.explain.display import NONE
from asyncrl.explain.views.run_figures import RunFigures, run_figures
from asyncrl.runtime.run_dir import RUN_TOML, refuse_no_run

TOML_BYTES = 2**20
"""Bytes of a run.toml, at most; a longer one is none of ours."""
OWN = frozenset({"run.dir"})
"""Settings that differ between any two runs."""
ABSENT = object()
"""Place of a setting that a run.toml does not have."""


class ComparedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in the order in which they were named. `differing` has, by key, the settings that are
    not the same in all of them, a value for each run and None where it has none; `accuracy` is the
    one of which it is said after how many seconds each run had it."""

    runs: list[RunFigures]
    differing: dict[str, list[Any]]
    accuracy: float | None


def compare(runs: Sequence[Path], accuracy: float | None = None) -> ComparedRuns:
    """Compare the runs in these directories; without an `accuracy`, by the best that each of them
    had. Raises ConfigError where one is no run."""
    for run in runs:
        refuse_no_run(run)
    settings = [read_settings(run) for run in runs]
    found = [run_figures(run) for run in runs]
    if accuracy is None and all(one.best for one in found):
        accuracy = min(one.best.accuracy for one in found if one.best)
    return ComparedRuns(runs=found, differing=differing(settings), accuracy=accuracy)


def read_settings(run: Path) -> dict[str, Any]:
    """The settings in a run's run.toml by key, none of them checked. Raises ConfigError."""
    path = run / RUN_TOML
    if path.stat().st_size > TOML_BYTES:
        raise ConfigError(f"{path}: this has more than {TOML_BYTES} bytes, and is no run.toml.")
    return {".".join(setting.path): setting.value for setting in settings_in(path)}


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The settings that are not the same in all, by key, in the order of the first that has them.

    >>> differing([{"train.lr": 0.1, "train.steps": 9}, {"train.lr": 0.2, "train.steps": 9}])
    {'train.lr': [0.1, 0.2]}
    """
    keys = dict.fromkeys(key for one in settings for key in one if key not in OWN)
    found = {key: [one.get(key, ABSENT) for one in settings] for key in keys}
    return {
        key: [None if value is ABSENT else value for value in values]
        for key, values in found.items()
        if len({repr(value) for value in values}) > 1  # by its text: nan is nan
    }


def as_json(found: ComparedRuns) -> str:
    """All of it as JSON, with what follows from the numbers."""
    said = msgspec.to_builtins(found)
    for one, figures in zip(said["runs"], found.runs, strict=True):
        one["best"] = msgspec.to_builtins(figures.best)
        one["discarded_share"] = figures.discarded_share
        one["seconds_to_accuracy"] = (
            None if found.accuracy is None else figures.seconds_to(found.accuracy)
        )
    return escaped_json(said, indent=2)


def rows(found: ComparedRuns) -> list[tuple[str, ...]]:
    """The table: a row of names, then a row for each setting and each number, with a column for
    each run."""

    def row(name: str, says: Callable[[RunFigures], str]) -> tuple[str, ...]:
        return (name, *map(says, found.runs))

    settings = [
        (key, *(NONE if value is None else quoted(value) for value in values))
        for key, values in found.differing.items()
    ]
    reached = []
    if (accuracy := found.accuracy) is not None:
        name = f"until accuracy {accuracy:.3f}"
        reached = [row(name, lambda r: _seconds(r.seconds_to(accuracy)))]
    return [
        row("", lambda r: r.run),
        *settings,
        row("run", lambda r: r.standing),
        row("steps", lambda r: f"{r.step}" + (f" of {r.steps}" if r.steps is not None else "")),
        row("time", lambda r: duration(r.seconds)),
        row("accuracy, start", lambda r: _number(r.evaluations[0].accuracy, 3) if r.best else NONE),
        row("accuracy, end", lambda r: _number(r.evaluations[-1].accuracy, 3) if r.best else NONE),
        row(
            "accuracy, best",
            lambda r: f"{r.best.accuracy:.3f}, version {r.best.version}" if r.best else NONE,
        ),
        *reached,
        row("reward, first steps", lambda r: _number(r.reward_first)),
        row("reward, last steps", lambda r: _number(r.reward_last)),
        row("tokens/s generated", lambda r: _number(r.generated_per_s, 0)),
        row("tokens/s trained", lambda r: _number(r.trained_per_s, 0)),
        row("idle, trainer", lambda r: _share(r.idle_trainer)),
        row("idle, rollout", lambda r: _share(r.idle_rollout)),
        row("lag", lambda r: f"{_number(r.lag_mean)} mean, {r.lag_max} max"),
        row("pause", lambda r: _number(r.pause_seconds, 3, " s")),
        row("tokens discarded", _discarded),
        row("restarts", lambda r: str(r.restarts)),
        row("steps with alarms", lambda r: str(r.alarms)),
    ]


def _discarded(figures: RunFigures) -> str:
    if figures.discarded_share is None:
        return NONE
    reasons = _largest(figures.tokens.discarded.items())
    named = [f"{count / figures.tokens.generated:.0%} {reason}" for reason, count in reasons]
    return _share(figures.discarded_share) + (f": {', '.join(named)}" if named else "")


def _largest(discarded: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(discarded, key=lambda item: (-item[1], item[0]))[:3]


def _number(value: float | None, digits: int = 2, unit: str = "") -> str:
    return NONE if value is None else f"{value:,.{digits}f}{unit}"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return "never" if value is None else duration(value)
