"""A task of a user's own, as a class: rows, the prompt of a row, and the verdict on an answer.

    class Sums(asyncrl.Task):
        def rows(self):
            return [{"a": a, "b": b} for a in range(50) for b in range(50)]

        def prompt(self, row):
            return f"{row['a']} + {row['b']} ="

        def answer(self, row):
            return str(row["a"] + row["b"])

It is named by `task.name = "module:Sums"` or `"./file.py:Sums"`, and made with `task.params` as its
arguments. Invariant: every process that makes it has the same rows in the same order, so rows
follow from the parameters, files and `self.seed` alone. All rows and prompts are made when it is
opened; held-out prompts never train.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

from asyncrl.config.errors import ConfigError
from asyncrl.config.plugins import Registry, derived_from, reason
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import Split
from asyncrl.tasks import TaskError
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.data.chat_messages import as_text, conversation
from asyncrl.tasks.images.image_source import beside, with_images
from asyncrl.tasks.partial_credit import exactly, settled_reward
from asyncrl.tasks.prompt import ChatPrompt, Messages, Prompt, text_of
from asyncrl.tasks.template import render
from asyncrl.tasks.verifiers import names, rewarded
from asyncrl.tasks.verifiers.exact import Exact

HELD_OUT_SHARE = 5
"""One row in this many is held out, at most, where a class does not say which."""


class RowTask(ABC):
    """A kind of task: derive a class, and define `rows` and what rows alone do not say.

    A row is anything; of a mapping, `prompt` and `answer` are those of its keys unless they are
    defined. The last `task.eval_size` rows are held out, at most a fifth of them, unless
    `evaluation_rows` gives others. At most `task.train_size` rows train.

    >>> class Echo(RowTask):
    ...     def rows(self):
    ...         return [{"prompt": f"Say {word}: ", "answer": word} for word in ("yes", "no")]
    >>> echo = Echo()
    >>> [echo.prompt(row) for row in echo.rows()], echo.verify("no ", echo.rows()[1])
    (['Say yes: ', 'Say no: '], 1.0)
    """

    executes: bool = False
    """True if `verify` executes answers as code: each is judged in a fresh process of the sandbox
    `strict`, or not at all."""
    languages: Collection[str] = frozenset()
    """Languages of the programs that `verify` starts, each in a sandbox of its own."""
    rewards: Sequence[str] | None = None
    """Names of several rewards: `verify` returns a mapping of them."""
    seed: int = 0
    """The run's seed, when `rows` is called."""

    @abstractmethod
    def rows(self) -> Iterable[Any]:
        """The rows, in an order that is always the same. They may have no end."""

    def evaluation_rows(self) -> Iterable[Any]:
        """Held-out rows; none if they are the last of `rows`."""
        return ()

    def prompt(self, row: Any) -> str | Messages:
        """The question of a row, which `task.template` or the model's chat template surrounds; or
        the messages of a conversation that ends with a question."""
        if isinstance(row, str):
            return row
        if isinstance(row, Mapping) and "prompt" in row:
            prompt: str | Messages = row["prompt"]
            return prompt if isinstance(prompt, str | list) else str(prompt)
        raise LookupError("it has no key 'prompt': define prompt(self, row)")

    def answer(self, row: Any) -> str | None:
        """A right answer to a row; None if it is not known. The bundled model's warm-up learns
        these, and `check` tries the verifier on one."""
        known = row.get("answer") if isinstance(row, Mapping) else None
        return None if known is None else str(known)

    def verify(self, answer: Answer, row: Any) -> Any:
        """The reward of an answer, 1 if it is right: here, if it is the text of `answer`."""
        known = self.answer(row)
        if known is None:
            raise LookupError("the row has no answer: define verify(self, answer, row)")
        return Exact()(answer, {"answer": known})


Task = RowTask
"""Its name in `asyncrl`, where a run's own form of a task has none."""

TASKS: Registry[type[RowTask] | RowTask] = Registry("task", {}, lambda found: _wrong(found))
"""Tasks that `task.name` may name by `module:name` or `./file.py:name`."""


def _wrong(found: Any) -> str:
    if isinstance(found, RowTask):
        return ""
    own = f"{RowTask.__module__}:{RowTask.__name__}"
    return derived_from(RowTask)(found).replace(own, "asyncrl.Task")


class OwnTask:
    """The task of a class, as a run has it: prompts by split and index.

    >>> class Squares(RowTask):
    ...     def rows(self):
    ...         return [{"prompt": f"{n} * {n} =", "answer": n * n} for n in range(10)]
    >>> task = OwnTask(Squares(), TaskConfig(name="mine:Squares", eval_size=2))
    >>> task.size("train"), task.prompt("evaluation", 0), task.verify("evaluation", 0, "64")
    (8, '8 * 8 =\\n', 1.0)
    """

    writes = True  # its verifier is the user's

    def __init__(self, task: RowTask, config: TaskConfig) -> None:
        """Make the rows and their prompts. Raises TaskError, which names the row."""
        self._task, self._config = task, config
        self._name = type(task).__name__
        self._exact = settled_reward(config) == "exact"
        self._refuse_unfit()
        train, held_out = self._made("rows", config.train_size + config.eval_size), list[Any]()
        own = self._made("evaluation_rows", config.eval_size) if config.eval_size else []
        if own:
            train, held_out = train[: config.train_size], own
        elif config.eval_size:
            count = min(config.eval_size, len(train) // HELD_OUT_SHARE)
            train, held_out = train[: len(train) - count], train[len(train) - count :]
        prompts = {repr(self._question("evaluation", at, row)) for at, row in enumerate(held_out)}
        kept = [
            row
            for at, row in enumerate(train)
            if repr(self._question("train", at, row)) not in prompts
        ]
        self._rows: dict[Split, list[Any]] = {"train": kept, "evaluation": held_out}
        self.notes = list[str]()
        if shared := len(train) - len(kept):
            self.notes.append(
                f"{shared:,} rows of {self._name} have the prompt of a held-out one and do not "
                f"train: {len(kept):,} are left"
            )
        if 0 < len(held_out) < config.eval_size:
            self.notes.append(
                f"{self._name} has {len(held_out):,} held-out prompts, and task.eval_size is "
                f"{config.eval_size:,}"
            )
        if not kept:
            raise self._error(
                "leaves no row to train on: "
                + (f"all {shared:,} have the prompt of a held-out one" if shared else "it has none")
            )

    @property
    def executes(self) -> bool:
        return bool(self._task.executes)

    @property
    def languages(self) -> frozenset[str]:
        return frozenset(self._task.languages)

    def warm(self) -> str:
        return text_of(self.prompt("train", 0))

    def size(self, split: Split) -> int:
        return len(self._rows[split])

    def prompt(self, split: Split, prompt_index: int) -> Prompt:
        question = self._question(split, prompt_index, self._row(split, prompt_index))
        if isinstance(question, str):
            return render(self._config, question)
        try:
            messages, found = with_images(question, ())
            hosts = self._config.image_hosts
            images = [beside(Path.cwd(), image, hosts) for image in found]
        except LookupError as error:
            raise self._error(
                f"makes no prompt of row {prompt_index} of {split}: {error}"
            ) from error
        return ChatPrompt(messages, render(self._config, as_text(messages)), [], images)

    def answer(self, split: Split, prompt_index: int) -> str | None:
        row = self._row(split, prompt_index)
        try:
            known = self._task.answer(row)
        except (Exception, SystemExit) as error:
            raise self._error(
                f"has no answer to row {prompt_index} of {split} ({reason(error)})"
            ) from error
        return None if known is None else str(known)

    def verify(self, split: Split, prompt_index: int, answer: str) -> float:
        row = deepcopy(self._row(split, prompt_index))  # the next answer is judged by the same
        asked, question = Answer.of(answer), self._question(split, prompt_index, row)
        if not isinstance(question, str):
            asked = asked.behind(question)
        reward: float = rewarded(self._task, self._task.verify(asked, row))  # type: ignore[arg-type]
        given: float = exactly(reward) if self._exact else reward
        return given

    def entry(self, split: Split, prompt_index: int) -> dict[str, Any]:
        """The row, with its prompt and its answer."""
        row = self._row(split, prompt_index)
        known = {"prompt": self._question(split, prompt_index, row)}
        if (answer := self.answer(split, prompt_index)) is not None:
            known["answer"] = answer
        return {**known, **row} if isinstance(row, Mapping) else {**known, "row": row}

    def _row(self, split: Split, prompt_index: int) -> Any:
        if not 0 <= prompt_index < self.size(split):
            raise IndexError(
                f"prompt {prompt_index} is outside the {split} split of {self.size(split)}"
            )
        return self._rows[split][prompt_index]

    def _made(self, method: str, most: int) -> list[Any]:
        """The first rows of a method. Raises TaskError for what it raises."""
        try:
            found = getattr(self._task, method)()
            if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
                raise TypeError(f"it returned a {type(found).__name__}, and must return rows")
            return list(islice(found, most))
        except (Exception, SystemExit) as error:
            raise self._error(
                f"has no rows, because {method}() failed ({reason(error)})"
            ) from error

    def _question(self, split: Split, at: int, row: Any) -> str | Messages:
        """The prompt that the class makes of a row, a text or a conversation. Raises TaskError if
        that is neither."""
        try:
            question: Any = self._task.prompt(row)
            if isinstance(question, list | tuple):
                return conversation(question)
        except (Exception, SystemExit) as error:
            raise self._error(
                f"makes no prompt of row {at} of {split} ({reason(error)})"
            ) from error
        if not isinstance(question, str):
            raise self._error(
                f"makes a {type(question).__name__} of row {at} of {split}: prompt(self, row) must "
                "return text, or a list of messages"
            )
        if not question.strip():
            raise self._error(f"makes an empty prompt of row {at} of {split}")
        return question

    def _refuse_unfit(self) -> None:
        """Raise TaskError for methods that cannot be called, and for bad class variables."""
        for method, given in (
            ("prompt", ("row",)),
            ("answer", ("row",)),
            ("verify", ("answer", "row")),
        ):
            called = getattr(self._task, method)
            form = f"{method}(self, {', '.join(given)})"
            if inspect.iscoroutinefunction(called):
                raise self._error(f"defines {method} as async: write it as def {form}")
            try:
                inspect.signature(called).bind(*given)
            except TypeError as error:
                raise self._error(
                    f"defines {method}{inspect.signature(called)}, and it is called as {form} "
                    f"({error})"
                ) from None
        languages = self._task.languages
        if isinstance(languages, str) or not all(isinstance(one, str) for one in languages):
            raise self._error('has languages that are no names: write languages = {"python"}')
        try:
            several = names(self._task)  # type: ignore[arg-type]
        except LookupError as error:
            raise self._error(str(error).replace("its function has", "has")) from None
        if several and self._exact:
            raise self._error("gives several rewards by name: set task.reward to score")

    def _error(self, what: str) -> TaskError:
        return TaskError(f"task.name: the class {self._name} {what}")


def open_own_task(config: TaskConfig, seed: int) -> OwnTask:
    """Open the task of the class that `task.name` names. Raises TaskError for a class that cannot
    be made with `task.params`, or whose rows, prompts or methods do not fit."""
    if config.name.startswith("hub:"):
        raise TaskError(
            f"task.name is {config.name!r}: a data set by its name is task.path, with task.name = "
            "data"
        )
    try:
        found = TASKS.find(config.name)
    except ConfigError as error:
        raise TaskError(f"task.name: {str(error).removesuffix('.')}") from error
    return open_found(found, config, seed)


def open_found(found: type[RowTask] | RowTask, config: TaskConfig, seed: int) -> OwnTask:
    """Open a task of a class or an object. Raises TaskError."""
    if why := _wrong(found):
        raise TaskError(f"task.name: a {type(found).__name__} is no task: {why}")
    if isinstance(found, type):
        task = _made(found, config.params)
    elif config.params:
        raise TaskError(
            f"task.params: {type(found).__name__} is made already, and takes no parameters: name "
            "its class, or remove them"
        )
    else:
        task = found
    task.seed = seed
    return OwnTask(task, config)


def _made(kind: type[RowTask], params: Mapping[str, Any]) -> RowTask:
    """An object of a class. Raises TaskError."""
    takes = inspect.Signature() if kind.__init__ is object.__init__ else inspect.signature(kind)
    try:
        takes.bind(**params)
    except TypeError as error:
        raise TaskError(
            f"task.params: the class {kind.__name__} takes {takes}, and is given "
            f"{', '.join(params) or 'nothing'} ({error})"
        ) from None
    try:
        return kind(**params)
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"task.name: the class {kind.__name__} cannot be made with task.params = "
            f"{dict(params)} ({reason(error)})"
        ) from error
