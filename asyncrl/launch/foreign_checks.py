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
from asyncrl.tasks import Task, TaskError
from asyncrl.tasks.file_answers import FileAnswers
from asyncrl.tasks.shared_groups import of_other_tokenizer
from asyncrl.words import sentence

PROMPTS = 2**16
"""Training prompts that are compared with those of the answers, at most."""
COMPARED_S = 5.0
"""Seconds for it."""


def check_foreign(config: Config, task: Task) -> list[Row]:
    """Read the foreign answers of a file. Returns a note on how many there are. Raises ConfigError
    for a file inside the run's directory, a row that cannot be used, and an answer to a prompt that
    the task does not train on."""
    foreign = config.foreign
    for name, path in (("foreign.path", foreign.path), ("share.path", config.share.path)):
        inside = (
            config.run.dir
            and path
            and Path(path).resolve().is_relative_to(Path(config.run.dir).resolve())
        )
        if inside:
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
            f"foreign answers: {unknown} answers a prompt that the task does not train on; take it "
            "out, or look at task.template and at the held-out prompts."
        )
    return [
        Row(
            "note",
            "foreign.path",
            f"{len(answers):,} foreign answers; at most {foreign.members} join a group",
        )
    ]


def _check_shared(config: Config, task: Task) -> None:
    """Raise ConfigError for a folder of shared groups that cannot be read or written, or whose
    groups are of another tokenizer."""
    for name, path, mode in (
        ("foreign.path", config.foreign.path, os.R_OK | os.X_OK),
        ("share.path", config.share.path, os.W_OK | os.X_OK),
    ):
        if not path or (name == "foreign.path" and config.foreign.source != "runs"):
            continue
        if "://" in path:
            raise ConfigError(
                f"{name} is {path!r}: groups are shared in a folder that all runs have, and not in "
                "an object store; name a folder."
            )
        if not is_folder(Path(path)) or not os.access(path, mode):
            raise ConfigError(
                f"{name} is {path!r}, which is no folder that this run may "
                f"{'write to' if name == 'share.path' else 'read'}; make it, or name another."
            )
    if config.foreign.source != "runs":
        return
    try:
        with own_tokenizer(config, task) as tokenizer:
            other = of_other_tokenizer(Path(config.foreign.path), "", tokenizer.digest)
    except TaskError as error:
        raise ConfigError(sentence(error)) from None
    if other:
        raise ConfigError(
            f"{other}: this group is of another tokenizer than model.path: runs that share groups "
            "have one tokenizer; name the folder of such runs."
        )
