"""Tasks of a loop written by hand: those of `[task]`, and lists in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from asyncrl.config import Config, ConfigError
from asyncrl.library.given_config import as_config
from asyncrl.messages import Split
from asyncrl.tasks import Task, TaskError, as_number
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.judge_checks import opened
from asyncrl.tasks.later import loop_of
from asyncrl.tasks.own_task import RowTask, open_found
from asyncrl.tasks.reward_forms import as_verifier
from asyncrl.tasks.verifiers import Verifier, rewarded
from asyncrl.words import sentence


def open_task(config: Config, task: type[RowTask] | RowTask | None = None) -> Task:
    """Open the task that `[task]` names (a data set of reasoning-gym, a JSONL file, a class of your
    own), or an `rl.Task` itself, by prompts of splits. Raises ConfigError, also for one whose
    verifier executes answers: that needs the sandbox of a run."""
    as_config("open_task", config)
    if task is None:
        return _judged_here(opened(config.task, config.run.seed), config.task.name)
    try:
        own = open_found(task, config.task, config.run.seed)
    except TaskError as error:
        raise ConfigError(sentence(error)) from None
    return _judged_here(own, "task")


def _judged_here(task: Task, name: str) -> Task:
    if task.executes or task.languages:
        raise ConfigError(
            f"task.name is {name!r}, whose verifier executes what the model answers: "
            "use asyncrl.train, which judges it in a sandbox."
        )
    return task


class ListTask:
    """Prompts in memory, judged by a function of the answer and its line. It is open already, as
    `open_task` returns a task; `train` passes its lines and the function's source to a run.

    >>> def long(answer, line):
    ...     return len(answer) / line["most"]
    >>> task = ListTask([{"prompt": "Say a lot: ", "most": 8}], long)
    >>> task.prompt("train", 0), task.verify("train", 0, "well")
    ('Say a lot: ', 0.5)
    """

    executes, writes = False, False
    languages = frozenset[str]()
    notes = ()

    def __init__(
        self,
        train: Sequence[Mapping[str, Any]],
        verifier: Verifier,
        evaluation: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Each line has a `prompt`, and the keys that the verifier reads. Raises ConfigError."""
        self._lines: dict[Split, list[dict[str, Any]]] = {
            "train": [dict(line) for line in train],
            "evaluation": [dict(line) for line in evaluation],
        }
        self.function = verifier
        """The verifier as it was given."""
        if not callable(verifier):
            raise ConfigError(f"a {type(verifier).__name__} is not a verifier: give a function.")
        try:
            self._verifier = as_verifier(verifier)
        except LookupError as error:
            raise ConfigError(sentence(error)) from None
        if not self._lines["train"]:
            raise ConfigError("a task needs at least one line to train on.")
        for split, lines in self._lines.items():
            for number, line in enumerate(lines):
                if not isinstance(line.get("prompt"), str):
                    raise ConfigError(f"line {number} of {split} has no prompt, which is a text.")

    @property
    def lines(self) -> dict[Split, list[dict[str, Any]]]:
        """The lines of each split."""
        return self._lines

    def warm(self) -> str:
        return self.prompt("train", 0)

    def size(self, split: Split) -> int:
        return len(self._lines[split])

    def prompt(self, split: Split, prompt_index: int) -> str:
        return str(self._line(split, prompt_index)["prompt"])

    def answer(self, split: Split, prompt_index: int) -> str | None:
        answer = self._line(split, prompt_index).get("answer")
        return None if answer is None else str(answer)

    def verify(self, split: Split, prompt_index: int, answer: str) -> float:
        line = deepcopy(self._line(split, prompt_index))  # the next answer is judged by the same
        if loop_of(self._verifier):
            raise ConfigError(
                "a verifier that is `async` is waited for in a run: give a `def` here."
            )
        reward = rewarded(self._verifier, self._verifier(Answer.of(answer), line))
        return as_number(reward)

    def _line(self, split: Split, prompt_index: int) -> dict[str, Any]:
        if not 0 <= prompt_index < self.size(split):
            raise IndexError(
                f"prompt {prompt_index} is outside the {split} split of {self.size(split)}"
            )
        return self._lines[split][prompt_index]
