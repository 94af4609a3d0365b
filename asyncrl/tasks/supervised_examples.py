"""Examples of prompts and responses, for a supervised loss: the rows of a data set in any of its
forms (`asyncrl/tasks/data/`), each with its whole response. Invariant: every row of a small data
set, and of a large one those that its task would check, is tokenized before the first one is
learned; nothing is kept in memory but the place of each row.

Prompts are put into the task's template, or the model's chat template, as those of the task are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from asyncrl.config.schema import Config
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.data_set import DataSet
from asyncrl.tasks.sft_rows import learned_ids, row_of
from asyncrl.tasks.text import Tokenizer

T = TypeVar("T")
NAMES = {"supervised": "examples", "foreign": "foreign answers"}
"""Names of what is read for each of these tables."""


class ExampleIds(NamedTuple):
    """The ids of a prompt, and of its response and the end of that.

    >>> len(ExampleIds(prompt=[5, 6], response=[7, 8, 2]).response)
    3
    """

    prompt: list[int]
    response: list[int]


class SupervisedExamples:
    """The examples of `supervised.path`, tokenized when they are asked for.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from asyncrl.bundled.bundled_model import write_tokenizer
    >>> from asyncrl.config import load
    >>> with TemporaryDirectory() as folder:
    ...     write_tokenizer(Path(folder), ["{}"])
    ...     rows = Path(folder, "rows.jsonl")
    ...     _ = rows.write_text('{"prompt": "1 + 1 =", "answer": "2"}')
    ...     config = load(None, ["supervised.coefficient=1", f"supervised.path={rows}"], {})
    ...     examples = SupervisedExamples(config, Tokenizer(folder))
    ...     len(examples), len(examples[0].response)  # "2", and the end
    (1, 2)
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, of: str = "supervised") -> None:
        """The examples that the table `of` names by path, prompt_key and answer_key. Raises
        TaskError."""
        own = config.supervised if of == "supervised" else config.foreign
        self._of = of
        self._task = replace(
            config.task, path=own.path, prompt_key=own.prompt_key, answer_key=own.answer_key
        )
        self._most, self._tokenizer = config.engine.context_tokens, tokenizer
        self._rows = self._named(lambda: DataSet(own.path, own.prompt_key, own.answer_key))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> ExampleIds:
        """An example. Raises TaskError, with its place, if it cannot be learned."""
        return self._named(lambda: self._ids(index))

    def check(self) -> None:
        """Tokenize the rows that are checked before a run. Raises TaskError."""
        for index in self._rows.sample():
            self[index]

    def _ids(self, index: int) -> ExampleIds:
        row = row_of(self._task, self._rows, index)
        if row.images:
            raise TaskError(f"{row.where}: it has an image, and examples beside rewards are texts")
        [only] = learned_ids(self._task, self._tokenizer, row, "last")
        if (length := len(only.ids)) > self._most:
            raise TaskError(
                f"{row.where} has {length} tokens, and engine.context_tokens is {self._most}; take "
                "it out, or raise that"
            )
        given = only.mask.index(1)
        return ExampleIds(only.ids[:given], only.ids[given:])

    def place(self, index: int) -> str:
        """The place of an example, in words."""
        return self._rows.place(index)

    def _named(self, read: Callable[[], T]) -> T:
        """The result of `read`, whose errors speak of `[task]`, since the reader is its own."""
        try:
            return read()
        except TaskError as error:
            text = str(error).replace("task.path and task.eval_path name", f"{self._of}.path names")
            for key in ("prompt_key", "answer_key"):
                text = text.replace(f"task.{key}", f"{self._of}.{key}")
            raise TaskError(f"{NAMES[self._of]}: {text}") from error
