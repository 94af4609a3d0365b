"""Several tasks as one. Invariant: a prompt belongs to one task, which verifies its answers.

The prompts of a split are numbered one task after the other, in the order of the mix. So a prompt
index names the task too, wherever it goes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, count
from typing import Any, get_args

from asyncrl.algorithms.selection.mixed_order import TaskPart
from asyncrl.config.mix import shares
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import Split
from asyncrl.tasks import Task, TaskError
from asyncrl.tasks.entry import entry_of
from asyncrl.tasks.prompt import Prompt


class MixedTask:
    """The tasks of `task.mix`, by label. Their prompts are numbered one task after the other.

    >>> MixedTask({})
    Traceback (most recent call last):
    asyncrl.tasks.TaskError: no task of task.mix has a training prompt
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        """Raises TaskError if none has a training prompt."""
        self.tasks = dict(tasks)
        self._listed = list(self.tasks.values())
        self._offsets: dict[Split, list[int]] = {
            split: [0, *accumulate(task.size(split) for task in self._listed)]
            for split in get_args(Split)
        }
        if not self.size("train"):
            raise TaskError("no task of task.mix has a training prompt")

    @property
    def executes(self) -> bool:
        return any(task.executes for task in self._listed)

    @property
    def languages(self) -> frozenset[str]:
        return frozenset(language for task in self._listed for language in task.languages)

    @property
    def writes(self) -> bool:
        return any(task.writes for task in self._listed)

    @property
    def notes(self) -> list[str]:
        return [f"{label}: {note}" for label, task in self.tasks.items() for note in task.notes]

    def warm(self) -> str:
        first, *others = self._listed
        for task in others:
            task.warm()
        return first.warm()

    def size(self, split: Split) -> int:
        return self._offsets[split][-1]

    def prompt(self, split: Split, prompt_index: int) -> Prompt:
        task, own = self._own(split, prompt_index)
        return task.prompt(split, own)

    def entry(self, split: Split, prompt_index: int) -> dict[str, Any]:
        task, own = self._own(split, prompt_index)
        return entry_of(task, split, own)

    def answer(self, split: Split, prompt_index: int) -> str | None:
        task, own = self._own(split, prompt_index)
        return task.answer(split, own)

    def verify(self, split: Split, prompt_index: int, answer: str) -> float:
        task, own = self._own(split, prompt_index)
        return task.verify(split, own, answer)

    def _own(self, split: Split, prompt_index: int) -> tuple[Task, int]:
        """The task of a prompt, and its index there."""
        offsets = self._offsets[split]
        if not 0 <= prompt_index < offsets[-1]:
            raise IndexError(f"prompt {prompt_index} is outside the {split} split of {offsets[-1]}")
        task = bisect_right(offsets, prompt_index) - 1
        return self._listed[task], prompt_index - offsets[task]


def parts_of(task: TaskConfig, size: Callable[[str, Split], int]) -> list[TaskPart]:
    """The tasks of the mix, in its order; `size(label, split)` counts the prompts of one. Empty
    if there is one task."""
    splits: tuple[Split, Split] = ("train", "evaluation")
    return [
        TaskPart(label, {split: size(label, split) for split in splits}, share)
        for label, share in shares(task).items()
    ]


def tasks_of(task: Task) -> list[Task]:
    """The tasks of a mix in their order, or the one task."""
    return list(task.tasks.values()) if isinstance(task, MixedTask) else [task]


def executed_prompts(task: Task) -> list[tuple[Split, int, int]]:
    """Prompts whose answers are executed: a split, and its prompts from one index up to another."""
    splits: tuple[Split, Split] = ("train", "evaluation")
    parts = tasks_of(task)
    ranges = list[tuple[Split, int, int]]()
    for split in splits:
        start = 0
        for part in parts:
            end = start + part.size(split)
            if part.executes and end > start:
                ranges.append((split, start, end))
            start = end
    return ranges


def size_of(task: Task) -> Callable[[str, Split], int]:
    """Return a function that counts the prompts of a label in a split."""
    tasks = task.tasks if isinstance(task, MixedTask) else {}
    return lambda label, split: tasks[label].size(split)


def in_turn(task: Task) -> Iterator[int]:
    """Training prompts in turn, without an end; several tasks take turns.

    >>> from itertools import islice
    >>> from asyncrl.config.schema import TaskConfig
    >>> from asyncrl.tasks import open_task
    >>> mix = {"a": {"name": "chain_sum", "train_size": 2}, "b": {"train_size": 3}}
    >>> list(islice(in_turn(open_task(TaskConfig(mix=mix), seed=0)), 6))
    [0, 2, 1, 3, 0, 4]
    """
    parts = tasks_of(task)
    sizes = [part.size("train") for part in parts]
    offsets = [0, *accumulate(sizes)]
    for number in count():
        for offset, size in zip(offsets, sizes, strict=False):
            if size:
                yield offset + number % size
