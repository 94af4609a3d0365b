"""Several tasks in one run: `task.mix`, `task.weights` and `task.stages`, read as typed settings.

A mix has a table for each task, under its label. Settings that are not in it come from [task]. The
weights are the share of each task in the training prompts; a list has one share for each stage. A
task without a weight is evaluated alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec

from asyncrl.config.errors import ConfigError
from asyncrl.config.fields import FIELDS
from asyncrl.config.schema import TaskConfig
from asyncrl.config.schema.section import Contradictions
from asyncrl.config.setting import checked, nearest

OWN = (
    *("name", "params", "path", "eval_path", "prompt_key", "answer_key", "verifier", "reward"),
    *("template", "train_size", "eval_size", "prefers"),
)
"""Settings of [task] that each task of a mix may override."""
ROUNDING = 1e-6
"""Tolerance for the sum of the weights, which must be 1."""
LABEL = re.compile(r"[A-Za-z0-9_-]{1,32}")


def members(task: TaskConfig) -> dict[str, TaskConfig]:
    """The tasks of a mix by their labels; none where [task] is one task. Raises ConfigError for an
    invalid table.

    >>> found = members(TaskConfig(mix={"sums": {"name": "chain_sum"}}, eval_size=8))
    >>> found["sums"].name, found["sums"].eval_size
    ('chain_sum', 8)
    """
    return {label: _member(task, label, table) for label, table in task.mix.items()}


def each(task: TaskConfig) -> list[TaskConfig]:
    """The tasks of the run: those of the mix, or [task] itself."""
    return [*members(task).values()] or [task]


def named(task: TaskConfig) -> str:
    """The name of the run's task, a class's own, or the labels of all of them.

    >>> named(TaskConfig(name="mine:Sums"))
    'Sums'
    """
    return "+".join(task.mix) or task.name.rpartition(":")[2]


def is_counted(task: TaskConfig) -> bool:
    """True if opening the task tells the number of its training prompts: `train_size` is at most
    a bound of it.

    >>> [is_counted(TaskConfig(name=name)) for name in ("data", "mine:Sums", "gcd")]
    [True, True, False]
    """
    return task.reads_data or ":" in task.name


def shares(task: TaskConfig) -> dict[str, tuple[float, ...]]:
    """The share of each task of the mix, in each stage. Raises ConfigError for an invalid weight.

    >>> shares(TaskConfig(mix={"a": {}, "b": {}}, weights={"a": [1.0, 0.5], "b": [0, 0.5]}, \
stages=(100,)))
    {'a': (1.0, 0.5), 'b': (0.0, 0.5)}
    """
    count = len(task.stages) + 1
    return {label: _shares(task.weights.get(label, 0.0), label, count) for label in task.mix}


def trained_size(task: TaskConfig) -> int:
    """Different training prompts of the tasks that are trained."""
    if not task.mix:
        return task.train_size
    trained = {label for label, weights in shares(task).items() if any(weights)}
    return sum(member.train_size for label, member in members(task).items() if label in trained)


def held_out_size(task: TaskConfig) -> int:
    """Held-out prompts of all tasks."""
    return sum(member.eval_size for member in each(task))


def mix_contradictions(task: TaskConfig) -> Contradictions:
    """Yield the keys that contradict each other, and the remedy as the end of a sentence."""
    if not task.mix:
        for key, value in (("task.weights", task.weights), ("task.stages", task.stages)):
            if value:
                yield (key, "task.mix"), "there is only one task: give task.mix a table for each"
        return
    for label in task.mix:
        if not LABEL.fullmatch(label):
            yield (
                ("task.mix",),
                "a label has 1 to 32 letters, digits, - and _: give each task such a label",
            )
            return
    if unknown := [label for label in task.weights if label not in task.mix]:
        yield (
            ("task.weights", "task.mix"),
            f"{unknown[0]!r} names no task; the nearest is {nearest(unknown[0], task.mix)!r}",
        )
        return
    if any(later <= earlier for earlier, later in pairwise((0, *task.stages))):
        yield ("task.stages",), "each stage begins after the one before it: sort them"
    try:
        members(task)
        task_shares = shares(task)
    except ConfigError as error:
        yield ("task.mix", "task.weights"), str(error).removesuffix(".")
        return
    for stage, of_stage in enumerate(zip(*task_shares.values(), strict=True), 1):
        if abs(sum(of_stage) - 1) > ROUNDING:
            where = f" of stage {stage}" if task.stages else ""
            yield (
                ("task.weights",),
                f"the weights{where} add up to {sum(of_stage):g}: each is a task's share of the "
                "prompts, and together they are 1",
            )


def _member(task: TaskConfig, label: str, table: Any) -> TaskConfig:
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"the task {label!r} is not a table: write [task.mix.{label}] and settings"
        )
    own: dict[str, Any] = {}
    for name, value in table.items():
        if name not in OWN:
            raise ConfigError(
                f"the task {label!r} has {name!r}, which a task of a mix cannot have; the "
                f"nearest is {nearest(name, OWN)!r}"
            )
        own[name] = checked(FIELDS[f"task.{name}"], value, f"the task {label!r}")
    if own.get("name", task.name) != task.name:
        own = {"params": {}, **own}  # those of another data set do not apply
    return msgspec.structs.replace(task, **own, mix={}, weights={}, stages=())


def _shares(value: Any, label: str, count: int) -> tuple[float, ...]:
    listed = value if isinstance(value, list) else [value] * count
    if len(listed) != count:
        raise ConfigError(
            f"the task {label!r} has {len(listed)} weights, and there are {count} stages: "
            "give one weight, or one for each stage"
        )
    if not all(type(one) in (int, float) and 0 <= one <= 1 for one in listed):
        raise ConfigError(f"the task {label!r} has a weight that is not a number from 0 to 1")
    return tuple(map(float, listed))
