"""Rows of a supervised run: conversations, or prompts with their answers. Invariant: a row is read
whole before the next one, and a wrong one is named by its place.

Rows come from a file (a line is an object with `messages`, or with `prompt` and `answer`), or from
a task that knows answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from asyncrl.config.schema import TaskConfig
from asyncrl.escape import escaped
from asyncrl.files import open_regular
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.jsonl import LINE_BYTES
from asyncrl.tasks.template import render

ANSWERS = ("answer", "response", "completion")
"""Keys of a line that may have its answer, the first that it has."""


class SftRow(NamedTuple):
    """One row, from the place `where`: a conversation (`messages`, with the `tools` that it names),
    or a `prompt` in its template, with the `answer`; None: the task knows none.

    >>> SftRow("line 3", prompt="2 + 2 =", answer="4").messages is None
    True
    """

    where: str
    prompt: str = ""
    answer: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] = ()


class RowSplit(NamedTuple):
    """The rows of a split: how many there are, and each in turn."""

    size: int
    rows: Callable[[], Iterator[SftRow]]


class RowSplits(NamedTuple):
    """The rows that are trained, and the held-out ones."""

    train: RowSplit
    held_out: RowSplit


def open_rows(config: TaskConfig, seed: int, most: int = 0) -> RowSplits:
    """The rows that `[task]` names; of a task that makes its rows at most `most` (0: all). Raises
    TaskError."""
    if config.name == "jsonl":
        return _of_file(config)
    task = open_task(config, seed)
    size = task.size("train")
    return RowSplits(
        RowSplit(count := min(size, most or size), partial(_of_task, config, task, "train", count)),
        RowSplit(
            held := task.size("evaluation"), partial(_of_task, config, task, "evaluation", held)
        ),
    )


def _of_task(config: TaskConfig, task: Task, split: Any, count: int) -> Iterator[SftRow]:
    for index in range(count):
        prompt, answer = task.prompt(split, index), task.answer(split, index)
        where = f"row {index + 1} of {config.name}"
        yield _pair(config, where, prompt, None if answer is None else str(answer))


def _of_file(config: TaskConfig) -> RowSplits:
    """The lines of a file: held out are those of task.eval_path, or the last ones, at most a tenth
    of all."""
    if not config.path:
        raise TaskError("task.name = 'jsonl' needs task.path, the file of rows")
    count = _count(config.path)
    if not count:
        raise TaskError(
            f"{config.path} has no rows; each line is an object with messages, or with prompt and "
            "answer"
        )
    if config.eval_path and config.eval_size:
        held = min(config.eval_size, _count(config.eval_path))
        return RowSplits(
            RowSplit(count, partial(_lines, config, config.path, 0, count)),
            RowSplit(held, partial(_lines, config, config.eval_path, 0, held)),
        )
    held = min(config.eval_size, count // 10)
    return RowSplits(
        RowSplit(count - held, partial(_lines, config, config.path, 0, count - held)),
        RowSplit(held, partial(_lines, config, config.path, count - held, count)),
    )


def _raw(path: str) -> Iterator[tuple[int, bytes]]:
    """Each line that is not empty, with its number."""
    try:
        with open_regular(Path(path)) as file:
            number = 0
            while line := file.readline(LINE_BYTES):
                number += 1
                if len(line) == LINE_BYTES:
                    raise TaskError(f"line {number} of {path} has more than {LINE_BYTES} bytes")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise TaskError(
            f"task.path is {path!r}, which cannot be read ({error.strerror}); give a JSONL file"
        ) from error


def _count(path: str) -> int:
    return sum(1 for _ in _raw(path))


def _lines(config: TaskConfig, path: str, start: int, end: int) -> Iterator[SftRow]:
    for number, line in islice(_raw(path), start, end):
        yield _row(config, f"line {number} of {path}", line)


def _row(config: TaskConfig, where: str, line: bytes) -> SftRow:
    """The row of a line. Raises TaskError."""
    try:
        entry = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"{where} is not an object of JSON: {escaped(str(error), 200)}") from error
    tools = entry.get("tools") or ()
    if "messages" in entry:
        return SftRow(where, messages=_messages(where, entry["messages"]), tools=tools)
    answer = next((entry[key] for key in ANSWERS if key in entry), None)
    prompt = entry.get("prompt")
    if prompt is None or isinstance(answer, list | dict | bool):
        keys = ", ".join(escaped(key, 40) for key in list(entry)[:6])
        raise TaskError(f"{where} has the keys {keys}, and needs messages, or prompt and answer")
    answer = None if answer is None else str(answer)
    if isinstance(prompt, list):
        before = _messages(where, prompt)
        end = [] if answer is None else [{"role": "assistant", "content": answer}]
        return SftRow(where, messages=[*before, *end], tools=tools)
    if not isinstance(prompt, str):
        raise TaskError(f"{where} has a prompt that is neither text nor a list of messages")
    return _pair(config, where, render(config, prompt), answer)


def _pair(config: TaskConfig, where: str, prompt: str, answer: str | None) -> SftRow:
    """A prompt and its answer, as a conversation where the chat template gives the form."""
    if answer is None:
        raise TaskError(
            f"{where} has no answer, and a supervised run learns answers: give rows with "
            "messages, or with prompt and answer"
        )
    if config.chat:
        pair = {"role": "user", "content": prompt}, {"role": "assistant", "content": answer}
        return SftRow(where, messages=pair)
    return SftRow(where, prompt, answer)


def _messages(where: str, given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise TaskError(f"{where} has messages that are no list of them")
    for number, message in enumerate(given, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TaskError(
                f"message {number} in {where} is no object with role and content: "
                f"{escaped(str(message), 80)}"
            )
    return given
