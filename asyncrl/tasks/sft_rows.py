"""Rows of a supervised run: conversations, or prompts with their answers. Invariant: the held-out
rows are those of an RL run of the same settings, and no row with the prompt of one is trained.

They come from a data set, in any of its forms (`asyncrl/tasks/data/`), or from a task that knows
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from asyncrl.config.schema import TaskConfig
from asyncrl.config.schema.sft_section import LossOn
from asyncrl.messages import Split
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.conversations import ASSISTANT, LearnedIds, answered
from asyncrl.tasks.conversations import conversation as whole_conversation
from asyncrl.tasks.data.chat_messages import FIRST, as_text, conversation, tools_of
from asyncrl.tasks.data.data_set import DataSet, held_out_count
from asyncrl.tasks.data.row_forms import LAST, messages_in
from asyncrl.tasks.data.row_reader import messages_of_prompt, system_of
from asyncrl.tasks.images.image_source import ImageSource, beside, images_of, with_images
from asyncrl.tasks.prompt import ChatPrompt, Prompt
from asyncrl.tasks.row_keys import value_at
from asyncrl.tasks.template import render
from asyncrl.tasks.text import Tokenizer


class SftRow(NamedTuple):
    """One row, from the place `where`: a `prompt`, and the `answer` to it. Of a conversation there
    are all `messages`, with the `tools` that it names, and its `images`.

    >>> SftRow("line 3", "2 + 2 =", "4").messages
    ()
    """

    where: str
    prompt: Prompt
    answer: str
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    images: Sequence[ImageSource] = ()

    @property
    def asked(self) -> bytes:
        """Bytes that tell its prompt from others."""
        return msgspec.json.encode([self.prompt, self.images] if self.images else self.prompt)


class RowSplit(NamedTuple):
    """The rows of a split: how many there are, and each by its number. Reading one raises
    TaskError.

    >>> RowSplit(1, lambda number: SftRow("line 3", "2 + 2 =", "4")).row(0).answer
    '4'
    """

    size: int
    row: Callable[[int], SftRow]


class RowSplits(NamedTuple):
    """The rows that are trained, the held-out ones, and how they are read, in words.

    >>> one = RowSplit(1, lambda number: SftRow("line 3", "2 + 2 =", "4"))
    >>> RowSplits(one, one).said
    ''
    """

    train: RowSplit
    held_out: RowSplit
    said: str = ""


def sft_rows(config: TaskConfig, seed: int, most: int = 0) -> RowSplits:
    """The rows that `[task]` names; of a task that makes its rows at most `most` (0: all). Raises
    TaskError."""
    if config.reads_data:
        return _of_data(config)
    task = open_task(config, seed)
    size, held = task.size("train"), task.size("evaluation")
    count = min(size, most or size)
    return RowSplits(
        RowSplit(count, partial(_of_task, config, task, "train")),
        RowSplit(held, partial(_of_task, config, task, "evaluation")),
    )


def learned_ids(
    config: TaskConfig, tokenizer: Tokenizer, row: SftRow, loss_on: LossOn, most: int = 0
) -> list[LearnedIds]:
    """The sequences of a row, of a long one only those up to the first with more than `most`
    tokens; of a conversation, for a model without a chat template, the last answer behind all else
    as one text. Raises TaskError with its place."""
    try:
        if row.images and not tokenizer.has_template:
            raise TaskError("it has an image, and the model has no chat template")
        if row.messages and (config.chat or tokenizer.has_template):
            found = whole_conversation(tokenizer, row.messages, row.tools, loss_on, most)
        else:
            found = [answered(tokenizer, row.prompt, row.answer)]
        highest = max(max(one.ids) for one in found)
        if tokenizer.embedded and highest >= tokenizer.embedded:
            raise TaskError(
                f"it has the token {highest}, and the model's embedding has {tokenizer.embedded} "
                "rows: give a model that knows the token"
            )
    except TaskError as error:
        raise TaskError(f"{row.where} cannot be learned: {error}") from error
    return found


def _of_task(config: TaskConfig, task: Task, split: Split, index: int) -> SftRow:
    answer = task.answer(split, index)
    where = f"row {index + 1} of {config.name}"
    return _asked(config, where, task.prompt(split, index), answer or "")


def _of_data(config: TaskConfig) -> RowSplits:
    """The rows of a data set: held out are those of task.eval_path, or its last ones."""
    if not config.path:
        raise TaskError(f"task.name = {config.name!r} needs task.path, the data set of rows")
    data = _opened(config, config.path)
    if config.eval_path and config.eval_size:
        apart = _opened(config, config.eval_path)
        held = min(config.eval_size, len(apart))
        return RowSplits(
            RowSplit(len(data), partial(row_of, config, data)),
            RowSplit(held, partial(row_of, config, apart)),
            data.said,
        )
    held = held_out_count(config, len(data))
    first = len(data) - held
    if first < 1:
        raise TaskError(
            f"{config.path} leaves no row to train on: all {len(data)} are held out; set "
            "task.eval_size lower, or give other rows in task.eval_path"
        )
    return RowSplits(
        RowSplit(first, partial(row_of, config, data)),
        RowSplit(held, lambda number: row_of(config, data, first + number)),
        data.said,
    )


def _opened(config: TaskConfig, path: str) -> DataSet:
    return DataSet(path, config.prompt_key, config.answer_key)


def row_of(config: TaskConfig, data: DataSet, index: int) -> SftRow:
    """A row of a data set. A conversation is learned as a whole, if it has an answer; to one that
    has none the answer is another key's. Raises TaskError, with its place."""
    raw, where, form = data.row(index), data.place(index), data.form
    try:
        talk = messages_in(value_at(raw, form.prompt[0])) if isinstance(raw, Mapping) else []
        if talk:
            messages, tools = conversation(talk), tools_of(raw.get("tools"))
            if (system := system_of(raw)) and messages[0]["role"] not in FIRST:
                messages.insert(0, {"role": "system", "content": system})
            if form.answer == LAST or messages[-1]["role"] == ASSISTANT:
                column = images_of(raw)
                if column or any(isinstance(message["content"], list) for message in messages):
                    messages, column = with_images(messages, column)
                return _talk(config, where, messages, tools, _placed(data, index, column))
        read = data.read_as_it_is(index, raw)
        images = _placed(data, index, read.images)
    except LookupError as error:
        raise TaskError(f"{where}: {error}") from error
    if messages := messages_of_prompt(read.prompt):
        _refuse_silent(where, read.response)
        whole = [*messages, {"role": ASSISTANT, "content": read.response}]
        return _talk(config, where, whole, read.tools, images)
    prompt = render(config, read.prompt) if isinstance(read.prompt, str) else read.prompt
    return _asked(config, where, prompt, read.response)  # type: ignore[arg-type]  # ids


def _placed(data: DataSet, index: int, images: Sequence[ImageSource]) -> list[ImageSource]:
    """The images of a row, with their paths in full. Raises LookupError."""
    if any(image.url for image in images):
        raise LookupError(
            "its image is a URL, and a supervised run fetches nothing: save the file beside the "
            "data, and give its path"
        )
    return [beside(data.folder(index), image) for image in images]


def _talk(
    config: TaskConfig,
    where: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    images: Sequence[ImageSource] = (),
) -> SftRow:
    """A conversation. Raises TaskError if the assistant says nothing."""
    last = max(
        (at for at, message in enumerate(messages) if message["role"] == ASSISTANT), default=0
    )
    if not last:
        raise TaskError(f"{where}: it has no answer of the assistant to learn")
    before = [dict(message) for message in messages[:last]]
    text = render(config, as_text(before))
    prompt = ChatPrompt(before, text, [dict(tool) for tool in tools])
    return SftRow(where, prompt, str(messages[last]["content"]), messages, tools, images)


def _asked(config: TaskConfig, where: str, prompt: Prompt, answer: str) -> SftRow:
    """A prompt and its answer, as a conversation where the chat template gives the form."""
    _refuse_silent(where, answer)
    if isinstance(prompt, str) and config.chat:
        pair = {"role": "user", "content": prompt}, {"role": ASSISTANT, "content": answer}
        return SftRow(where, prompt, answer, pair)
    return SftRow(where, prompt, answer)


def _refuse_silent(where: str, answer: str) -> None:
    if not answer.strip():
        raise TaskError(
            f"{where}: it has no answer; give rows with messages, or with prompt and answer "
            "(task.answer_key)"
        )
