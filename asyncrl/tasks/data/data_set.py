"""A data set of a configuration: its rows, read by their form. Invariant: the same row is read the
same in every process."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.data_rows import open_rows
from asyncrl.tasks.data.row_forms import LAST, RowForm, form_of
from asyncrl.tasks.data.row_reader import ReadRow, read_row, system_of
from asyncrl.tasks.data.taken_answers import RULES, rule_of
from asyncrl.tasks.row_keys import value_at

FIRST = 64
"""Rows by which the form is told."""
LOOKED_AT = 1024
"""Rows of a large data set that are checked at the start: as many first ones, and drawn ones."""


def held_out_count(config: TaskConfig, rows: int) -> int:
    """The number of rows that are held out, the last ones of so many: `task.eval_size`, and a fifth
    of them at most where that is not set.

    >>> [held_out_count(TaskConfig(eval_size=size), 100) for size in (128, 8, 99, 500)]
    [20, 8, 99, 100]
    """
    unset = config.eval_size == TaskConfig().eval_size
    return min(config.eval_size, rows // 5 if unset else rows)


class DataSet:
    """The rows of a path, read by their form.

    >>> DataSet("docs/examples/own_data/prompts.jsonl").form.keys
    'prompt, answer'
    """

    def __init__(self, path: str, prompt_key: str = "", answer_key: str = "") -> None:
        """Raises TaskError."""
        self._rows = open_rows(path)
        self.note = self._rows.note
        self.form, self.rule = RowForm("", ("prompt",), "answer"), ""
        first = list(islice(self._objects(), FIRST))
        if not first:
            self.read(0)  # says why
        self._system = next(filter(None, map(system_of, first)), "")
        try:
            self.form = form_of(first, prompt_key, answer_key)
        except TaskError as error:
            raise TaskError(f"{self._rows.place(0)}: {error}") from error
        if self.form.answer and self.form.answer != LAST and not self.form.choices:
            answers = (value_at(row, self.form.answer) for row in first)
            self.rule = rule_of([answer for answer in answers if answer is not None])

    @property
    def small(self) -> bool:
        """True if all rows are to be checked."""
        return self._rows.small

    @property
    def said(self) -> str:
        """Words on how its rows are read; empty where they are as this project writes them."""
        form = self.form
        if form == RowForm("asyncrl", ("prompt",), "answer") and not self.rule + self._system:
            return ""
        name = f"as {form.name}: " if form.name else "by their keys "
        taken = f"; {RULES[self.rule][1]}" if self.rule else ""
        system = "; each begins with its system message" if self._system else ""
        return f"rows are read {name}{form.keys}{taken}{system}"

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, index: int) -> str:
        return self._rows.place(index)

    def folder(self, index: int) -> Path | None:
        """The folder of a row's file, where its images are; None for data of a hub."""
        return self._rows.folder(index)

    def row(self, index: int) -> dict[str, Any]:
        """A row as it is. Raises TaskError, with its place, if it cannot be read."""
        try:
            row: dict[str, Any] = self._rows.row(index)
        except LookupError as error:
            raise TaskError(f"{self._rows.place(index)}: {error}") from error
        return row

    def read(self, index: int) -> ReadRow:
        """A row's prompt and answer. Raises TaskError, with its place."""
        return self.read_as_it_is(index, self.row(index))

    def read_as_it_is(self, index: int, row: Any) -> ReadRow:
        """A row's prompt and answer; `row` is what `row` gave. Raises TaskError, with its place."""
        try:
            return read_row(row, self.form, self.rule)
        except LookupError as error:
            raise TaskError(f"{self._rows.place(index)}: {error}") from error

    def sample(self) -> list[int]:
        """The rows that are checked at the start: all of a small data set; the first ones of a
        large one, and some that are drawn, the same in every process."""
        if self.small or len(self) <= 2 * LOOKED_AT:
            return list(range(len(self)))
        drawn = random.Random(len(self)).sample(range(LOOKED_AT, len(self)), LOOKED_AT)
        return [*range(LOOKED_AT), *sorted(drawn)]

    def _objects(self) -> Iterator[dict[str, Any]]:
        """The first rows that are objects."""
        for index in range(min(len(self), 4 * FIRST)):
            try:
                row = self._rows.row(index)
            except LookupError:
                continue
            if isinstance(row, dict):
                yield row


def digest_of(read: ReadRow) -> int:
    """Eight bytes that tell a prompt from others."""
    known = [read.prompt, read.images] if read.images else read.prompt
    text = known if isinstance(known, str) else msgspec.json.encode(known)
    data = text.encode(errors="replace") if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())
