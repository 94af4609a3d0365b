"""Rows as examples to learn from: a prompt, and the whole response that the data has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.chat_messages import as_text
from asyncrl.tasks.data.data_set import DataSet
from asyncrl.tasks.data.row_reader import ReadRow, messages_of_prompt
from asyncrl.tasks.images.image_source import beside
from asyncrl.tasks.prompt import ChatPrompt, Prompt
from asyncrl.tasks.template import render


class TaughtRow(NamedTuple):
    """A prompt, whose conversation has all earlier turns, and the response to it.

    >>> TaughtRow("1 + 1 =", "2").response
    '2'
    """

    prompt: Prompt
    response: str


def prompt_of(config: TaskConfig, read: ReadRow, folder: Path | None = None) -> Prompt:
    """The prompt of a row: a text in the task's template, a conversation, or ids. `folder` has the
    files of its images. Raises LookupError for an image whose file is elsewhere."""
    prompt = read.prompt
    if isinstance(prompt, str):
        return render(config, prompt)
    if messages := messages_of_prompt(prompt):
        images = [beside(folder, image, config.image_hosts) for image in read.images]
        return ChatPrompt(messages, render(config, as_text(messages)), read.tools, images)
    return [one for one in prompt if isinstance(one, int)]


def taught_rows(config: TaskConfig) -> Iterator[TaughtRow]:
    """Yield the rows of `task.path` in their order: prompts with whole solutions, and not their
    results alone. Raises TaskError, with its place, for a row that cannot be read, or has no
    response."""
    rows = DataSet(config.path, config.prompt_key, config.answer_key)
    for index in range(len(rows)):
        read = rows.read(index)
        if not read.response.strip():
            raise TaskError(f"{rows.place(index)}: it has no response to learn")
        if read.images:
            raise TaskError(f"{rows.place(index)}: it has an image, and examples are texts so far")
        yield TaughtRow(prompt_of(config, read), read.response)
