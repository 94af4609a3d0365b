"""Checks of foreign answers before a run: all that it would refuse when it reads them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row
from asyncrl.launch.prompt_checks import own_tokenizer
from asyncrl.tasks import Task, TaskError
from asyncrl.tasks.file_answers import FileAnswers
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
    if foreign.source != "file":
        return []
    if config.run.dir and Path(foreign.path).resolve().is_relative_to(
        Path(config.run.dir).resolve()
    ):
        raise ConfigError(
            f"foreign.path is {foreign.path!r}, which is in the run's own directory "
            f"{config.run.dir}: its own answers are not foreign; name another file."
        )
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
