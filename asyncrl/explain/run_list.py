"""`asyncrl runs`: the runs in a folder. Nothing that they name is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from asyncrl.config.errors import ConfigError
from asyncrl.config.paths import exists, is_file, is_folder
from asyncrl.explain.run_figures import standing
from asyncrl.explain.run_files import RunFiles
from asyncrl.runtime.run_dir import ORIGINS, RUN_TOML
from asyncrl.words import NONE, duration

FOLDER = Path("runs")
"""The folder in which a run is looked for where none is named."""
HEAD = ("run", "state", "step", "began", "directory")


def runs_in(folder: Path) -> list[RunFiles]:
    """The runs in a folder, those that began last first; none where there is no such folder.
    Raises ConfigError for a folder that cannot be read."""
    if not is_folder(folder):
        return []
    found = list[tuple[float, str, RunFiles]]()
    for path in folder.iterdir():
        with suppress(OSError, ConfigError):  # one that is just removed, or another user's
            if is_folder(path) and is_file(path / RUN_TOML):
                found.append((_began(path), path.name, RunFiles(path)))
    return [files for _, _, files in sorted(found, key=lambda each: each[:2], reverse=True)]


def newest_run(folder: Path = FOLDER) -> Path:
    """The run in a folder that began last. Raises ConfigError if there is none."""
    for files in runs_in(folder):
        return files.path
    raise ConfigError(f"{folder}: there is no run in it; give the directory of a run.")


def run_rows(folder: Path, now: float) -> Iterator[tuple[str, ...]]:
    """A row for each run in a folder, below a head. Raises ConfigError if there is none."""
    if not (found := runs_in(folder)):
        what = "there is no run in it" if exists(folder) else "there is no such directory"
        raise ConfigError(f"{folder}: {what}; give the directory that has your runs.")
    yield HEAD
    for files in found:
        step = steps = NONE
        with suppress(ConfigError):
            step = str(files.status.step)
            steps = str(files.status.steps)
        ago = f"{duration(max(0.0, now - _began(files.path)))} ago"
        yield files.path.name, _standing(files), f"{step}/{steps}", ago, str(files.path)


def _standing(files: RunFiles) -> str:
    try:
        return standing(files)
    except ConfigError:
        return "damaged"


def _began(path: Path) -> float:
    """Seconds since 1970 at which a run began: its origins are noted once."""
    noted = path / ORIGINS
    return (noted if exists(noted) else path / RUN_TOML).stat().st_mtime
