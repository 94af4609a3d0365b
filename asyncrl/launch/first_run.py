"""`asyncrl init`: the run.toml of a first run, for one task. Invariant: `asyncrl check` accepts
it.

It holds the basic settings, each with its meaning, the lengths that this task needs, and what
`--set` says. Everything else has its default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from asyncrl import bundled
from asyncrl.bundled.bundled_model import frame, tokenizer
from asyncrl.config import ConfigError, load, read
from asyncrl.config.fields import FIELDS
from asyncrl.config.load import render
from asyncrl.config.paths import is_file, is_folder, is_hub_name
from asyncrl.config.plugins import module_and_name
from asyncrl.config.schema import ModelConfig, RolloutConfig, TaskConfig
from asyncrl.config.setting import Tier
from asyncrl.escape import escaped
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.catalog import catalog, verdict
from asyncrl.tasks.prompt import ChatPrompt, text_of
from asyncrl.tasks.text import Tokenizer

MAIN_JOB = Path(bundled.__file__).with_name("run.toml")
"""The bundled job, which `make run` runs in a clone."""
LOOKED_AT = 256
"""Number of prompts on which lengths are measured."""
DECODED = 16
"""Number of prompts whose images are decoded, to measure lengths."""
SPARE = 1.25
"""Factor for longer ones."""
KEYS = tuple(key for key, field in FIELDS.items() if field.tier is Tier.BASIC)
"""Settings that are written down; those of OF_A_FILE for a data set of the user's alone."""
OF_A_FILE = ("task.path", "task.verifier")
WHOLE = ("", "exact", "number")
"""Verifiers that compare the whole response with the answer."""
HEAD = """\
# A run of asyncrl on {what}, written by `asyncrl init`.
#
#   asyncrl check {file}      what follows from it; starts nothing
#   asyncrl train {file}
#
# The bundled model: {verdict}.{held_out}
# These are the basic settings. The others: `asyncrl settings SECTION`, or docs/defaults.toml.

"""


def write_first_run(what: str, path: Path, sets: Sequence[str] = ()) -> None:
    """Write the run.toml of a first run to `path`: for a task, for data of the user's, or where
    `what` is empty the bundled job; `sets` are texts as of `--set`. Raises ConfigError if there is
    no such task, or if `path` exists."""
    if sets and not what:
        raise ConfigError(
            f"--set {escaped(sets[0], 60)}: name the task or the file of which it is a setting, as "
            "asyncrl init FILE --set task.prompt_key=question."
        )
    text = first_run(what, path.name, sets) if what else main_job()
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{path}: this already exists, and is not changed; go to another directory, or "
            "move it away."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: this cannot be written ({error.strerror or error}).") from None


def main_job() -> str:
    """The run.toml of the bundled job. Raises ConfigError if its task is not installed."""
    try:
        open_task(read(MAIN_JOB).task, 0)
    except TaskError as error:
        raise ConfigError(f"{error}.") from None
    return MAIN_JOB.read_text(encoding="utf-8")


def first_run(what: str, file: str, sets: Sequence[str] = ()) -> str:
    """The text of a run.toml for a task or data of the user's, to be named `file`, with what `sets`
    say. Raises ConfigError."""
    here = is_file(Path(what)) or is_folder(Path(what))
    of_class = not here and not is_hub_name(what) and module_and_name(what) is not None
    # no data set of reasoning-gym has these characters in its name
    of_file = here or (not of_class and bool({*"./*:"} & set(what)))
    of_task = ["task.name=data", f"task.path={what}"] if of_file else [f"task.name={what}"]
    said = _keys(sets)
    ours = (of_file or of_class) and not said & {"task.eval_size", "task.eval_path"}
    try:
        config = load(None, [*of_task, *["task.eval_size=0"] * ours, *sets], {}).task
        task = open_task(config, 0)
        if ours:
            config = _with_held_out(config, task.size("train"))
        longest = _lengths(task, whole=config.verifier in WHOLE)
        if shown := _shown(task):
            path = load(None, [*of_task, *sets], {}).model.path
            longest = max(longest[0], _seen(shown, path, what)), longest[1]
    except TaskError as error:
        by_set = "; here, by --set task.prompt_key=KEY" * ("task.prompt_key" in str(error))
        raise ConfigError(f"{error}{by_set}.") from None
    found = {
        "task.eval_size": config.eval_size,
        "engine.context_tokens": longest[0] + longest[1],
        "rollout.max_new_tokens": longest[1],
        "train.eval_every": 20,
    }
    chosen = load(None, [*of_task, *(f"{key}={value}" for key, value in found.items()), *sets], {})
    written = [key for key in KEYS if of_file or key not in OF_A_FILE]
    text = render(chosen, [*written, *sorted(said.difference(written))], folder=Path.cwd())
    if not of_file and not of_class:
        text = text.replace("\n# The model that", f"\n{_parameters(what)}\n# The model that", 1)
    head = HEAD.format(
        what=what if not of_file else f"the prompts of {what}",
        file=file,
        held_out=_held_out_words(config, task) + _read_words(task) if of_file else "",
        verdict=verdict(catalog()[what]) if what in catalog() else _unknown(task),
    )
    return head + text


def _keys(sets: Sequence[str]) -> set[str]:
    """The settings that these texts of `--set` change.

    >>> sorted(_keys(["task.prompt_key=q", "task.params.size = 3"]))
    ['task.params', 'task.prompt_key']
    """
    names = [f"{text.partition('=')[0].strip()}." for text in sets]
    return {key for key in FIELDS if any(name.startswith(f"{key}.") for name in names)}


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


def _lengths(task: Task, *, whole: bool) -> tuple[int, int]:
    """Tokens of the bundled model that prompts take, and that answers may take: with room to spare,
    in multiples of 8. Where an answer is not the `whole` response, it has what is usual, too."""
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
    usual = 0 if whole and known else RolloutConfig().max_new_tokens
    return max([most(prompts), *of_ids]), max(usual, most(known) if known else 0)


def _shown(task: Task) -> list[ChatPrompt]:
    """Prompts with images."""
    asked = (task.prompt("train", item) for item in range(min(LOOKED_AT, task.size("train"))))
    return [one for one in asked if isinstance(one, ChatPrompt) and one.images]


def _seen(shown: Sequence[ChatPrompt], path: str, what: str) -> int:
    """Tokens of the model at `path` that prompts with images take, with room to spare, by a few of
    them. Raises ConfigError without a model, and TaskError if it reads none of them."""
    if not path:
        raise ConfigError(
            f"prompts of {escaped(what, 200)} have images, which the bundled model does not read: "
            "give a model of Qwen2.5-VL's or Qwen3-VL's family, as --set model.path=DIRECTORY "
            "(docs/vision.md makes a small one)."
        )
    tokenizer, longest, unread = Tokenizer(path, chat=True), 0, list[TaskError]()
    for prompt in shown[:DECODED]:
        try:
            longest = max(longest, len(tokenizer.encode_shown(prompt)[0]))
        except TaskError as error:
            unread.append(error)
    if not longest:
        raise unread[0]
    return 8 * math.ceil((longest + 1) * SPARE / 8)


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
