"""Code in the directory of a run: which of it this session wrote. Invariant: what lies there runs
only if the session wrote it, or names it again; the directory may be another user's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncrl.config import ConfigError
from asyncrl.config.load import settings_in
from asyncrl.config.own_files import absolute, split
from asyncrl.runtime.run_dir import CODE, RUN_TOML
from asyncrl.tasks.judge_checks import digest

SETTINGS = {
    "reward": "task.verifier",
    "task": "task.name",
    "agent": "agent.run",
    "advantage": "train.advantage",
    "objective": "train.objective",
    "credit": "train.credit",
    "group_weight": "train.group_weight",
    "minibatch_by": "train.minibatch_by",
    "keep": "train.keep",
    "replay": "train.replay",
    "correction": "staleness.correction",
    "curriculum": "task.curriculum",
    "sizing": "rollout.sizing",
    "filter": "rollout.filter",
    "prune": "rollout.prune",
}
"""The setting of each keyword of `asyncrl.train` that takes code."""


def kept_code(run: Path) -> dict[str, str]:
    """The settings of a run that name code in its own directory: the key, and the value with the
    whole path. Imports nothing. Raises ConfigError."""
    found = dict[str, str]()
    for setting in settings_in(run / RUN_TOML):
        for text in _texts(setting.value):
            parts = split(text)
            if parts is not None and (run / parts[0]).resolve().is_relative_to(run.resolve()):
                found[".".join(setting.path)] = absolute(text, run)
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def refuse_kept_code(run: Path, named: Collection[str]) -> None:
    """Check that each setting of a run that names code in its directory is among those that are
    `named` again. Raises ConfigError: the directory may be another user's."""
    for key, text in kept_code(run).items():
        if not any(key == other or key.startswith(f"{other}.") for other in named):
            keyword = next((word for word, of in SETTINGS.items() if of == key), "")
            again = f"run.resume({keyword}=…) in Python, or " if keyword else ""
            value = text if key != "staleness.correction" else f'[{{kind="{text}"}}]'
            raise ConfigError(
                f"{run / RUN_TOML}: {key} names code that lies in the run's own directory, which "
                f"is run only if you name it: read {text.rpartition(':')[0]}, then give it again "
                f"by {again}--set '{key}={value}'."
            )


def same_code(run: Path, digests: Mapping[str, str]) -> bool:
    """True if the run's folder of code has these files as they are known."""
    known = digests.items()
    return bool(digests) and all(
        digest(run / CODE / name) == known_one for name, known_one in known
    )
