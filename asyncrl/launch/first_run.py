"""`asyncrl init`: the run.toml of a first run, for one task. Invariant: `asyncrl check` accepts
it.

It holds the basic settings, each with its meaning, and the lengths that this task needs. Everything
else has its default.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from asyncrl.bundled.bundled_model import frame, tokenizer
from asyncrl.config import Config, ConfigError
from asyncrl.config.fields import FIELDS
from asyncrl.config.load import render
from asyncrl.config.paths import is_file, is_folder
from asyncrl.config.schema import EngineConfig, ModelConfig, RolloutConfig, TaskConfig, TrainConfig
from asyncrl.config.setting import Tier
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.catalog import catalog, verdict
from asyncrl.tasks.prompt import text_of

LOOKED_AT = 256
"""Number of prompts on which lengths are measured."""
SPARE = 1.25
"""Factor for longer ones."""
KEYS = tuple(key for key, field in FIELDS.items() if field.tier is Tier.BASIC)
"""Settings that are written down; those of OF_A_FILE for a data set of the user's alone."""
OF_A_FILE = ("task.path", "task.verifier")
HEAD = """\
# A run of asyncrl on {what}, written by `asyncrl init`.
#
#   asyncrl check {file}      what follows from it; starts nothing
#   asyncrl train {file}
#
# The bundled model: {verdict}.{held_out}
# These are the basic settings. The others: `asyncrl settings SECTION`, or docs/defaults.toml.

"""


def write_first_run(what: str, path: Path) -> None:
    """Write the run.toml of a first run to `path`: for a task, or for data of the user's. Raises
    ConfigError if there is no such task, or if `path` exists."""
    text = first_run(what, path.name)
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{path}: this exists already, and is left as it is; go to another directory, or move "
            "it away."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: this cannot be written ({error.strerror}).") from None


def first_run(what: str, file: str) -> str:
    """The text of a run.toml for a task or data of the user's, to be named `file`. Raises
    ConfigError."""
    # no task's name has these characters
    of_file = bool({*"./*:"} & set(what)) or is_file(Path(what)) or is_folder(Path(what))
    config = TaskConfig(name="data", path=what, eval_size=0) if of_file else TaskConfig(name=what)
    try:
        task = open_task(config, 0)
        if of_file:
            config = _with_held_out(config, task.size("train"))
        longest = _lengths(task)
    except TaskError as error:
        raise ConfigError(f"{error}.") from None
    chosen = Config(
        task=config,
        engine=EngineConfig(context_tokens=longest[0] + longest[1]),
        rollout=RolloutConfig(max_new_tokens=longest[1]),
        train=TrainConfig(eval_every=20),
    )
    text = render(chosen, [key for key in KEYS if of_file or key not in OF_A_FILE])
    if not of_file:
        text = text.replace("\n# The model that", f"\n{_parameters(what)}\n# The model that", 1)
    head = HEAD.format(
        what=what if not of_file else f"the prompts of {what}",
        file=file,
        held_out=_held_out_words(config, task) + _read_words(task) if of_file else "",
        verdict=verdict(catalog()[what]) if what in catalog() else _unknown(task),
    )
    return head + text


def _with_held_out(config: TaskConfig, lines: int) -> TaskConfig:
    """A file's task with as many rows held out as is usual, but at most a fifth; fewer if that
    leaves less than half of the rows to train on, because many have a held-out prompt."""
    held_out = min(TaskConfig().eval_size, lines // 5)
    while held_out:
        chosen = msgspec.structs.replace(config, eval_size=held_out)
        try:
            if 2 * open_task(chosen, 0).size("train") >= lines:
                return chosen
        except TaskError:
            pass  # none is left
        held_out //= 2
    return config


def _held_out_words(config: TaskConfig, whole: Task) -> str:
    """A comment on what is held out of a file; `whole` is its task with nothing held out."""
    lines = whole.size("train")
    if config.eval_size:
        return f"\n# Held out: the last {config.eval_size:,} of {lines:,} rows (task.eval_size)."
    return (
        f"\n# Nothing is held out of {lines:,} rows, so nothing is evaluated: give prompts in\n"
        "# task.eval_path, and their number in task.eval_size."
    )


def _read_words(whole: Task) -> str:
    """Comments on how rows are read, and on what is left out."""
    return "".join(f"\n# {note[0].upper()}{note[1:]}." for note in whole.notes)


def _unknown(task: Task) -> str:
    enough = ModelConfig().warmup_accuracy
    return f"not measured on this; the warm-up says within a minute if it will reach {enough}"


def _lengths(task: Task) -> tuple[int, int]:
    """Tokens of the bundled model that prompts take, and that answers may take: with room to
    spare, in multiples of 8."""
    items = range(min(LOOKED_AT, task.size("train")))
    asked = [task.prompt("train", item) for item in items]
    prompts = [text_of(prompt) for prompt in asked]
    answers = [task.answer("train", item) for item in items]
    bytes_of = tokenizer(frame(prompts))

    def most(texts: list[str]) -> int:
        longest = max(len(bytes_of.encode(text).ids) for text in texts)
        return 8 * math.ceil((longest + 1) * SPARE / 8)

    known = [answer for answer in answers if answer is not None]
    of_ids = [len(prompt) for prompt in asked if isinstance(prompt, list)]
    return max([most(prompts), *of_ids]), most(known) if known else RolloutConfig().max_new_tokens


def _parameters(name: str) -> str:
    """The data set's own parameters with their defaults, as comments."""
    from asyncrl.tasks.gym import parameters

    lines = ["# The data set's own parameters; without the `#` they are set.", "# [task.params]"]
    for key, value in parameters(name).items():
        try:
            lines_of_value = tomli_w.dumps({key: _plain(value)}).strip()
        except (TypeError, ValueError):
            continue  # TOML has no form for it
        lines += [f"# {line}" for line in lines_of_value.splitlines()]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | set | frozenset) else value
