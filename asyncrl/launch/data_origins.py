"""The origins of a run's prompts and verdicts, noted at its start and compared at each resume.
Invariant: a prompt index means the same prompt as long as the run continues.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row
from asyncrl.config.mix import each
from asyncrl.files import read_regular, write_whole
from asyncrl.runtime.run_dir import ORIGINS
from asyncrl.tasks.data.data_digest import data_digest
from asyncrl.tasks.judge_checks import origins

MOST_BYTES = 2**20
"""Bytes of the file that are read: it has a line for each file of the task."""


def check_origins(config: Config, run: Path) -> list[Row]:
    """Compare the task of a resumed run with what its start noted. Returns notes on a verifier or a
    package that has changed: a run may continue with a better one. Raises ConfigError for other
    data, in which the prompts that were trained have other numbers."""
    try:
        noted = msgspec.json.decode(read_regular(run / ORIGINS, MOST_BYTES), type=dict[str, str])
    except FileNotFoundError:  # the run began under an earlier version
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{run / ORIGINS} cannot be read ({error}); remove it.") from None
    files = {path for task in each(config.task) for path in (task.path, task.eval_path) if path}
    notes = list[Row]()
    for name, now in _origins(config).items():
        if noted.get(name, now) == now:
            continue
        if name in files:
            raise ConfigError(
                f"{name} is not the file that this run began with, so the prompts that count "
                "as trained have changed: put the file back, or begin a new run from this "
                "one's model (model.path)."
            )
        differ = "rewards"
        if name in (config.supervised.path, config.foreign.path):
            differ = "its examples" if name == config.supervised.path else "foreign answers"
        notes.append(Row("note", name, f"is not what this run began with: {differ} may differ"))
    return notes


def note_origins(config: Config, run: Path) -> None:
    """Note the origins of the task, once in a run. Raises OSError."""
    if not (run / ORIGINS).exists():
        write_whole(run / ORIGINS, msgspec.json.encode(_origins(config)))


def _origins(config: Config) -> dict[str, str]:
    """The origins of the task, and of the examples and answers that are learned beside it."""
    paths = [
        config.supervised.path if config.supervised.coefficient else "",
        config.foreign.path if config.foreign.source == "file" else "",
    ]
    return {path: data_digest(path) for path in paths if path} | origins(config.task)
