"""Checks of foreign answers before a run: all that it would refuse when it reads them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row
from asyncrl.config.paths import is_folder
from asyncrl.launch.prompt_checks import own_tokenizer
from asyncrl.object_store import StoreError, folder_of, is_stored, shown_url
from asyncrl.tasks import Task, TaskError
from asyncrl.tasks.file_answers import FileAnswers
from asyncrl.tasks.shared_groups import of_other_tokenizer
from asyncrl.tasks.shared_places import SharedPlace, shared_place
from asyncrl.words import sentence

PROMPTS = 2**16
"""Training prompts that are compared with those of the answers, at most."""
COMPARED_S = 5.0
"""Seconds for it."""
PROBE = "probe"
"""The name of what is written to a store to see whether it may be."""


def check_foreign(config: Config, task: Task) -> list[Row]:
    """Read the foreign answers of a file. Returns a note on how many there are. Raises ConfigError
    for a file inside the run's directory, a row that cannot be used, and an answer to a prompt that
    the task does not train on."""
    foreign = config.foreign
    for name, path in (("foreign.path", foreign.path), ("share.path", config.share.path)):
        folder = folder_of(path) if path and config.run.dir else None
        if folder and folder.resolve().is_relative_to(Path(config.run.dir).resolve()):
            raise ConfigError(
                f"{name} is {path!r}, which is in the run's own directory {config.run.dir}: what "
                "is its own is not foreign, and nobody else writes there; name another place."
            )
    if foreign.source == "runs" or config.share.path:
        _check_shared(config, task)
    if foreign.source != "file":
        return []
    try:
        with own_tokenizer(config, task) as tokenizer:
            answers = FileAnswers(config, tokenizer)
            prompts, end = list[bytes](), time.monotonic() + COMPARED_S
            size = task.size("train")
            for index in range(min(size, PROMPTS)):
                ids = tokenizer.encode(task.prompt("train", index))
                prompts.append(np.array(ids, np.int32).tobytes())
                if time.monotonic() > end:
                    break
            unknown = answers.unknown(prompts) if len(prompts) == size else ""
    except TaskError as error:
        raise ConfigError(sentence(error)) from None
    if unknown:
        raise ConfigError(
            f"foreign answers: {unknown} answers a prompt that the task does not train on; "
            "remove it, or check task.template and the held-out prompts."
        )
    return [
        Row(
            "note",
            "foreign.path",
            f"foreign answers: {len(answers):,}; at most {foreign.members} join a group",
        )
    ]


def _check_shared(config: Config, task: Task) -> None:
    """Raise ConfigError for a place of shared groups that cannot be read or written, or whose
    groups are of another tokenizer."""
    foreign, given = config.foreign, config.share.path
    taken = foreign.source == "runs"
    place = _check_place("foreign.path", foreign.path, writes=False) if taken else None
    if given:
        _check_place("share.path", given, writes=True)
    if place is None:
        return
    try:
        with own_tokenizer(config, task) as tokenizer:
            other = of_other_tokenizer(place, "", tokenizer.digest)
    except TaskError as error:
        raise ConfigError(sentence(error)) from None
    except (OSError, StoreError) as error:
        raise ConfigError(f"foreign.path is {_shown(foreign.path)!r}, and {error}.") from None
    if other:
        raise ConfigError(
            f"{_shown(foreign.path)}/{other}: this group was made with another tokenizer than "
            "model.path's: runs that share groups need the same tokenizer; give the folder of "
            "such runs."
        )


def _check_place(name: str, path: str, *, writes: bool) -> SharedPlace:
    """The place that a setting names, in which a store has been read, and written if it is for
    that. Raises ConfigError."""
    folder, mode = folder_of(path), (os.W_OK if writes else os.R_OK) | os.X_OK
    if folder is not None and not (is_folder(folder) and os.access(folder, mode)):
        raise ConfigError(
            f"{name} is {path!r}, which is no folder that this run may "
            f"{'write to' if writes else 'read'}; make it, or name another."
        )
    try:
        place = shared_place(path)
        if folder is None:
            next(place.some(), None)
            if writes:
                place.write(PROBE, PROBE, b"")
                place.remove(PROBE, PROBE)
    except (OSError, StoreError) as error:
        raise ConfigError(f"{name} is {_shown(path)!r}, and {error}.") from None
    return place


def _shown(path: str) -> str:
    return shown_url(path) if is_stored(path) else path
