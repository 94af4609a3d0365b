"""`asyncrl compare RUN RUN …`: runs side by side, the settings in which they differ first.

Settings are compared as the text of each run.toml has them. So no module that one names is
imported, and runs of two versions of asyncrl can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.setting import quoted
from asyncrl.escape import escaped_json
from asyncrl.explain.rows import figure_rows
from asyncrl.explain.run_figures import RunFigures, run_figures
from asyncrl.explain.run_files import RunFiles
from asyncrl.words import NONE

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
    opened = [RunFiles(run) for run in runs]
    settings = [files.settings for files in opened]
    found = [run_figures(files) for files in opened]
    if accuracy is None and all(one.best for one in found):
        accuracy = min(one.best.accuracy or 0.0 for one in found if one.best)
    return ComparedRuns(runs=found, differing=differing(settings), accuracy=accuracy)


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
    """The table: a row of names, then a row for each setting and each figure, with a column for
    each run."""
    settings = [
        (key, *(NONE if value is None else quoted(value) for value in values))
        for key, values in found.differing.items()
    ]
    losses = any(figures.held_out_loss for figures in found.runs)
    columns = [figure_rows(figures, found.accuracy, losses=losses) for figures in found.runs]
    figures = [(each[0][0], *(said for _, said in each)) for each in zip(*columns, strict=True)]
    return [("", *(figures.run for figures in found.runs)), *settings, *figures]
