"""Reads a row: its prompt and its answer, by the form of its data set. Pure."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from asyncrl.tasks.data.accepted_answers import accepted
from asyncrl.tasks.data.chat_messages import FIRST, conversation, kind, tools_of
from asyncrl.tasks.data.row_forms import LAST, RowForm, messages_in
from asyncrl.tasks.data.taken_answers import RULES
from asyncrl.tasks.images.image_source import (
    COLUMNS,
    ImageSource,
    images_of,
    images_wanted,
    with_images,
)
from asyncrl.tasks.prompt import Messages
from asyncrl.tasks.row_keys import keys_of, listed, value_at

SYSTEM = ("system", "system_prompt")
"""Keys of a row's system message."""
LARGEST_ID = 2**31
"""Ids are smaller."""


class ReadRow(NamedTuple):
    """A prompt (a text, messages, or ids), its tools and its images; the answer, as verifiers get
    it, None where there is none; and the whole response that the data has.

    >>> ReadRow("1 + 1 =", 2, "2").tools
    []
    """

    prompt: str | Messages | list[int]
    answer: Any = None
    response: str = ""
    tools: Messages = []  # noqa: RUF012  never changed
    images: Sequence[ImageSource] = ()


def read_row(row: Any, form: RowForm, rule: str = "") -> ReadRow:
    """Read a row, whose answer is taken by a `rule`. Raises LookupError, with the reason as the end
    of a sentence.

    >>> row = {"question": "1 + 1?", "answer": "That is 2.\\n#### 2"}
    >>> read_row(row, RowForm("gsm8k", ("question",), "answer"), "mark").answer
    '2'
    """
    if not isinstance(row, dict):
        raise LookupError(f"it is {kind(row)}, and each row is an object with prompt and answer")
    prompt, given = _with_system(_prompt(row, form), row), None
    tools = tools_of(row.get("tools"))
    if messages := messages_of_prompt(prompt):
        if form.answer == LAST:
            prompt, given = _last(messages)
        elif messages[-1]["role"] == "assistant":
            if form.prompt == ("prompt",) or len(messages) == 1:
                raise LookupError(
                    "its last message is the assistant's: a prompt ends with the user's, and the "
                    "answer has a key of its own (task.answer_key)"
                )
            prompt, _ = _last(messages)
    elif form.answer == LAST:
        raise LookupError(f"its {form.prompt[0]} is no list of messages")
    if form.answer and form.answer != LAST:
        given = value_at(row, form.answer)
    read = _with_answer(row, form, rule, prompt, given, tools)
    return _with_images(read, images_of(row), may_want=any(key in row for key in COLUMNS))


def _with_images(read: ReadRow, column: Sequence[ImageSource], *, may_want: bool) -> ReadRow:
    """The row with its images: a prompt with any is a conversation. Marks `<image>` in its texts
    are places of images if it `may_want` some. Raises LookupError."""
    messages = messages_of_prompt(read.prompt)
    if isinstance(read.prompt, str):
        messages = [{"role": "user", "content": read.prompt}]
    parts = any(isinstance(one["content"], list) for one in messages)
    if not column and not parts and not (may_want and images_wanted(messages)):
        return read
    if not messages:
        raise LookupError("its prompt is ids, which have no place for its images")
    marked, images = with_images(messages, column)
    return read._replace(prompt=marked, images=images)


def system_of(row: Mapping[str, Any]) -> str:
    """The system's message of a row that has it at a key of its own; else an empty text.

    >>> system_of({"system": "Be brief.", "prompt": "1 + 1?"}), system_of({"system": 7})
    ('Be brief.', '')
    """
    for key in SYSTEM:
        if key in row and isinstance(one := row[key], str) and one.strip():
            return one
    return ""


def _with_system(
    prompt: str | Messages | list[int], row: Mapping[str, Any]
) -> str | Messages | list[int]:
    """The prompt as a conversation that begins with the row's system message, if it has one."""
    if not (system := system_of(row)):
        return prompt
    messages = messages_of_prompt(prompt)
    if not messages and not isinstance(prompt, str):
        return prompt
    if messages and messages[0]["role"] in FIRST:
        return prompt
    begin = {"role": "system", "content": system}
    return [begin, *(messages or [{"role": "user", "content": prompt}])]


def messages_of_prompt(prompt: str | Messages | list[int]) -> Messages:
    """The prompt as messages; none if it is a text or ids."""
    if isinstance(prompt, str) or not isinstance(prompt[0], dict):
        return []
    return [one for one in prompt if isinstance(one, dict)]


def _with_answer(
    row: Mapping[str, Any],
    form: RowForm,
    rule: str,
    prompt: str | Messages | list[int],
    given: Any,
    tools: Messages,
) -> ReadRow:
    answer = _settled(given)
    if form.choices and isinstance(answer, int):
        answer = _letter(answer, row, form)
    elif form.choices and isinstance(answer, str):
        answer = answer.strip()
    response = "" if answer is None else next(map(str, accepted(answer)), "")
    if rule:
        taken = RULES[rule][0](answer) if isinstance(answer, str) else None
        if not taken:
            mark = "####" if rule == "mark" else "\\boxed{}"
            raise LookupError(f"its {form.answer} has no {mark}, which the first rows have")
        answer = taken
    return ReadRow(prompt, answer, response, tools)


def _prompt(row: Mapping[str, Any], form: RowForm) -> str | Messages | list[int]:
    parts = list[str]()
    for number, key in enumerate(form.prompt):
        value = value_at(row, key)
        if messages := messages_in(value):
            return conversation(messages)
        if isinstance(value, list) and value and all(type(one) is int for one in value):
            if not all(0 <= one < LARGEST_ID for one in value):
                raise LookupError(f"its {key} has a number that is no id")
            return value
        if value is None and key.partition(".")[0] not in row:
            raise LookupError(f"{key} is missing: it has {listed(keys_of(row))}")
        if value is None and number and parts:  # what belongs to a prompt may be missing
            continue
        if isinstance(value, list) and not value:
            raise LookupError("its prompt is empty")
        if not isinstance(value, str):
            raise LookupError(
                f"its {key} is {kind(value)}, and must be a text, a list of messages, or ids"
            )
        parts.append(value)
    if not any(part.strip() for part in parts):
        raise LookupError("its prompt is empty")
    if form.choices:
        parts.append(_choices(value_at(row, form.choices)))
    if len(parts) == 1:
        return parts[0]
    return "\n\n".join(part for part in parts if part.strip())


def _last(messages: Messages) -> tuple[Messages, str]:
    """A conversation without its last message, and that. Raises LookupError if it is no answer."""
    *before, last = messages
    if last["role"] != "assistant":
        raise LookupError(
            f"its last message is the {last['role']}'s, so there is no answer to take: name the "
            "key of the answer in task.answer_key"
        )
    if not before or before[-1]["role"] == "assistant" or not last["content"].strip():
        raise LookupError("its last message is no answer to take: a text behind another's message")
    return before, last["content"]


def _settled(given: Any) -> Any:
    """An answer in a form that verifiers know: a text or a number where it can be one, or a list of
    those that are right."""
    if isinstance(given, list | tuple):
        if messages := messages_in(given):
            given = str(conversation_end(messages))
        elif len(given) == 1 and not isinstance(given[0], list | dict):
            given = given[0]
        else:
            return [_settled(one) if isinstance(one, bool | float) else one for one in given]
    if isinstance(given, bool):
        return str(given)
    if isinstance(given, float) and not math.isfinite(given):
        raise LookupError("its answer is no number that is finite: write it as text, in quotes")
    return given


def conversation_end(messages: Sequence[Any]) -> str:
    """The text of the last message, of the assistant. Raises LookupError."""
    last = messages[-1]
    text = last.get("content", last.get("value")) if isinstance(last, Mapping) else None
    if not isinstance(text, str):
        raise LookupError("its answer is a list of messages without a text at its end")
    return text


def _choices(value: Any) -> str:
    """The choices, a letter before each. Raises LookupError."""
    if isinstance(value, Mapping):  # columns of a table: texts and labels
        texts, labels = value.get("text"), value.get("label")
    else:
        texts, labels = value, None
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise LookupError("its choices are no list of texts")
    if not isinstance(labels, list) or len(labels) != len(texts):
        labels = list(string.ascii_uppercase[: len(texts)])
    # some have their letter in the text already, as `A)12`
    return "\n".join(
        text if text.startswith((f"{label})", f"{label}.")) else f"{label}. {text}"
        for label, text in zip(labels, texts, strict=False)
    )


def _letter(answer: int, row: Mapping[str, Any], form: RowForm) -> str:
    value = value_at(row, form.choices)
    count = len(value.get("text", ())) if isinstance(value, Mapping) else len(value)
    if not 0 <= answer < min(count, 26):
        raise LookupError(f"its {form.answer} is {answer}, and there are {count} choices")
    return string.ascii_uppercase[answer]
