"""Prompts, and verifiers of answers. Invariant: a task is a function of its configuration and the
run's seed.

So every process that opens a task sees the same prompt at the same index, and only (split,
prompt_index, response ids) cross a link. Some reasoning-gym data sets iterate over Python sets of
strings: their prompts are the same in two processes only if both run under one `PYTHONHASHSEED`,
which the launcher gives to every actor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from asyncrl.config.errors import InputError, installs
from asyncrl.config.mix import members
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import Split
from asyncrl.tasks.prompt import Prompt

__all__ = [
    "Figures",
    "MaskedReward",
    "NoReward",
    "Several",
    "Task",
    "TaskError",
    "as_number",
    "open_task",
    "wrong_figures",
]

FIGURES = 16
"""Most figures that a verifier may log for an answer, and that a step has."""
_FIGURE = re.compile(r"[A-Za-z0-9_.-]{1,40}")


class TaskError(InputError):
    """The task cannot be opened as configured. The text says what is wrong, where, and what to
    do."""


class NoReward(Exception):
    """A verifier returned a value that is not a reward; the text says why, with its kind before the
    colon."""


def as_number(value: Any, name: str = "") -> float:
    """Convert what a verifier returned to a reward; `name` is that of one of several. Raises
    NoReward for anything but a number, and for an integer too large for a float.

    >>> as_number(True)
    1.0
    >>> as_number(-(10**400))
    Traceback (most recent call last):
    asyncrl.tasks.NoReward: too large
    """
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except OverflowError:
        raise NoReward("too large" + f": {name}" * bool(name)) from None
    except (TypeError, ValueError):
        pass
    raise NoReward(f"not a number: {type(value).__name__}" + f", as {name}" * bool(name))


class Several(float):
    """Several named rewards of one answer. As a number it is their sum, NaN if that is not finite.
    `parts` are in the task's order, the same for all answers to a prompt.

    >>> reward = Several({"right": 1.0, "brief": 0.25})
    >>> float(reward), reward.parts["brief"]
    (1.25, 0.25)
    """

    parts: dict[str, float]

    def __new__(cls, parts: Mapping[str, float]) -> Self:
        try:
            self = super().__new__(cls, math.fsum(parts.values()))
        except (OverflowError, ValueError):  # too large, and infinities of either sign
            self = super().__new__(cls, math.nan)
        self.parts = dict(parts)
        return self


class MaskedReward(float):
    """A reward, and the `errors` of the answer: characters [start, end) of its text that stay out
    of the loss, in any order.

    >>> reward = MaskedReward(1.0, [(0, 12)])
    >>> float(reward), reward.errors
    (1.0, [(0, 12)])
    """

    errors: list[tuple[int, int]]

    def __new__(cls, reward: float, errors: Iterable[tuple[int, int]]) -> Self:
        self = super().__new__(cls, as_number(reward))
        self.errors = list(errors)
        return self


class Figures(float):
    """A reward of any of these forms, with named `figures` of the answer, whose means are curves of
    the run. They do not affect training.

    >>> logged = Figures(1.0, {"brief": True, "steps": 3})
    >>> float(logged), logged.reward, logged.figures["brief"]
    (1.0, 1.0, 1.0)
    """

    reward: Any
    figures: dict[str, float]

    def __new__(cls, reward: Any, figures: Mapping[str, float]) -> Self:
        """Raises NoReward for figures that are not finite, too many, or badly named."""
        try:
            self = super().__new__(cls, reward)
        except (TypeError, ValueError, OverflowError):
            self = super().__new__(cls, math.nan)  # a mapping, or what is no reward
        self.reward = reward
        self.figures = {str(name): as_number(value, str(name)) for name, value in figures.items()}
        if problem := wrong_figures(self.figures):
            raise NoReward(f"figures: {problem}")
        return self


def wrong_figures(figures: Mapping[str, float]) -> str:
    """The reason why a verifier may not log these figures; empty if it may.

    >>> wrong_figures({"brief": 1.0}), wrong_figures({"a b": 1.0})
    ('', "the name 'a b', which may have letters, digits, _, - and . alone, at most 40")
    """
    if len(figures) > FIGURES:
        return f"{len(figures)} of them, where {FIGURES} are the most"
    for name, value in figures.items():
        if not _FIGURE.fullmatch(name):
            allowed = "which may have letters, digits, _, - and . alone, at most 40"
            return f"the name {name[:40]!r}, {allowed}"
        if not math.isfinite(value):
            return f"{name} is not finite"
    return ""


class Task(Protocol):
    """Two splits of prompts, `train` and `evaluation`, that share no prompt, and the verifier of
    their answers.

    >>> task: Task = open_task(TaskConfig(name="chain_sum", train_size=8, eval_size=2), seed=0)
    >>> task.size("evaluation")
    2
    >>> task.verify("train", 3, task.answer("train", 3))
    1.0
    """

    @property
    def executes(self) -> bool:
        """True if the verifier executes answers as code. Then each answer is judged in a
        fresh process of the sandbox `strict`, or not at all."""
        ...

    @property
    def languages(self) -> frozenset[str]:
        """Languages in which answers are programs, each of which the verifier starts in a sandbox
        of its own (`asyncrl.sandbox.programs`). The verifier executes none of them itself, and
        cannot start them in the sandbox `strict`. Empty if it starts none."""
        ...

    @property
    def writes(self) -> bool:
        """True if the verifier may write files. They are its own, and gone after the verdict."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Notes about the data that its user should read before a run."""
        ...

    def warm(self) -> str:
        """Load what every prompt and verdict needs, before the processes that make them are forked.
        Judges no answer and no text of a data file. Returns a prompt."""
        ...

    def size(self, split: Split) -> int:
        """Number of prompts in the split; they are numbered from 0."""
        ...

    def prompt(self, split: Split, prompt_index: int) -> Prompt:
        """The prompt that the model continues. A text is the question in `task.template`, or the
        bare question if `task.chat` leaves the form to the model's chat template; a conversation is
        always in that; ids are the prompt. Raises IndexError outside the split, and TaskError for
        one that cannot be read, which a run drops."""
        ...

    def answer(self, split: Split, prompt_index: int) -> str | None:
        """A right answer; None if the task knows none. The warm-up learns from these."""
        ...

    def verify(self, split: Split, prompt_index: int, answer: str) -> float:
        """The reward of an answer, 1.0 if it is fully right; `Several` if it is made of
        parts. In a run the answer is an `Answer`, which says how it ended. It may be slow and may
        raise anything, NoReward if the verifier returned something else. So call it in a process
        that can be killed (`asyncrl.actors.verifier_process`)."""
        ...


def open_task(config: TaskConfig, seed: int) -> Task:
    """Open the task that `[task]` names, or the tasks of its mix as one. All of its input is
    checked here, and one prompt of each split is made, so that an error is found before anything
    starts. Raises TaskError."""
    if config.mix:
        from asyncrl.tasks.mixed import MixedTask

        return MixedTask(
            {label: _open_member(label, member, seed) for label, member in members(config).items()}
        )
    if config.reads_data:
        from asyncrl.tasks.data.data_task import DataTask

        return DataTask(config)
    if config.name == "seeds":
        from asyncrl.tasks.seeds import SeedsTask

        return SeedsTask(config)
    if ":" in config.name:
        from asyncrl.tasks.own_task import open_own_task

        return open_own_task(config, seed)
    try:
        from asyncrl.tasks.gym import GymTask
    except ModuleNotFoundError as missing:
        package = str(missing.name).partition(".")[0]
        raise TaskError(
            f"task.name = {config.name!r} is a data set of reasoning-gym, and {package} is not "
            f"installed: {installs('gym')}, or set task.name = data"
        ) from missing
    return GymTask(config, seed)


def _open_member(label: str, config: TaskConfig, seed: int) -> Task:
    try:
        return open_task(config, seed)
    except TaskError as error:
        raise TaskError(f"task.mix.{label}: {error}") from error
