"""`asyncrl runs`: the runs in a folder, the newest first, each with how it stands, its accuracy and
what it cost; the runs of a game are those of its policies. Nothing that they name is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from asyncrl.config.errors import ConfigError, usable
from asyncrl.config.paths import exists, is_file, is_folder
from asyncrl.explain.curve import EvaluationPoint, Point
from asyncrl.explain.curve_reader import last_points
from asyncrl.explain.run_figures import standing
from asyncrl.explain.run_files import RunFiles, is_game
from asyncrl.explain.run_status import RunStatus
from asyncrl.runtime.run_dir import METRICS, ORIGINS, RUN_TOML
from asyncrl.words import NONE, duration, number

FOLDER = Path("runs")
"""The folder in which a run is looked for where none is named."""
HEAD = ("run", "state", "step", "accuracy", "worked", "device time", "began", "directory")


def runs_in(folder: Path) -> list[RunFiles]:
    """The runs in a folder, those that began last first; none where there is no such folder.
    Raises ConfigError for a folder that cannot be read."""
    if not is_folder(folder):
        return []
    found = list[tuple[float, str, RunFiles]]()
    with usable(folder, "read"):
        inside = [*_entries(folder)]
    for path in inside:
        with suppress(OSError, ConfigError):  # one that is just removed, or another user's
            if is_folder(path) and is_file(path / RUN_TOML):
                found.append((_began(path), path.name, RunFiles(path)))
    return [files for _, _, files in sorted(found, key=lambda each: each[:2], reverse=True)]


def _entries(folder: Path) -> Iterator[Path]:
    """The entries of a folder, and of the games in it."""
    for path in folder.iterdir():
        with suppress(OSError, ConfigError):  # as above
            if is_game(path):
                yield from path.iterdir()
                continue
        yield path


def name_in(folder: Path, files: RunFiles) -> str:
    """The name of a run of `runs_in`: `NAME`, or `GAME/POLICY`."""
    return str(files.path.relative_to(folder))


def newest_run() -> Path:
    """The run in `runs` that began last. Raises ConfigError if there is none."""
    for files in runs_in(FOLDER):
        return files.path
    raise ConfigError(f"{FOLDER}: there is no run in it; give the directory of a run.")


def run_rows(folder: Path, now: float) -> Iterator[tuple[str, ...]]:
    """A row for each run in a folder, below a head. Of a curve the end is read. Raises ConfigError
    if there is none."""
    if not (found := runs_in(folder)):
        what = "there is no run in it" if exists(folder) else "there is no such directory"
        raise ConfigError(f"{folder}: {what}; give the directory that has your runs.")
    yield HEAD
    for files in found:
        yield name_in(folder, files), _standing(files), *run_cells(files, now), str(files.path)


def run_cells(files: RunFiles, now: float) -> tuple[str, str, str, str, str]:
    """Say the steps of a run, its accuracy, the time that it worked, that of its devices, and when
    it began. Of the curve the end is read."""
    step, accuracy, worked, cost = NONE, NONE, NONE, NONE
    with suppress(ConfigError):
        points = last_points(files.path / METRICS)
        accuracy = number(_accuracy(points), 3)
        seconds = points[0].seconds if points else None
        if (status := files.last_status) is not None:
            step = f"{status.step}/{status.steps}"
            seconds = max(seconds or 0.0, status.seconds)
            cost = duration(seconds * devices(status))
        worked = duration(seconds)
    began = NONE
    with suppress(ConfigError, OSError):  # it is just removed
        began = f"{duration(max(0.0, now - _began(files.path)))} ago"
    return step, accuracy, worked, cost, began


def _accuracy(points: list[Point]) -> float | None:
    """The held-out accuracy that was measured last, of the newest points."""
    known = (p.accuracy for p in points if isinstance(p, EvaluationPoint))
    return next((accuracy for accuracy in known if accuracy is not None), None)


def devices(status: RunStatus) -> int:
    """Devices that a run has: those of its rollout actors, and those of its trainer's ranks. One
    that is lent counts once, as it is the trainer's."""
    lent = status.lending.engines if status.lending is not None else 0
    roles = [actor.role for actor in status.actors if not actor.removed]
    return roles.count("trainer") + roles.count("rollout") - lent


def _standing(files: RunFiles) -> str:
    try:
        return standing(files)
    except ConfigError:
        return "damaged"


def _began(path: Path) -> float:
    """Seconds since 1970 at which a run began: its origins are noted once."""
    noted = path / ORIGINS
    return (noted if exists(noted) else path / RUN_TOML).stat().st_mtime
