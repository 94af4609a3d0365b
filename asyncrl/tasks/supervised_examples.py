"""Examples of prompts and responses, for a supervised loss. Invariant: every line is parsed and
checked before the first one is learned.

A line of the JSONL file is an object with `prompt` and `response`. The prompt is put into the
task's template, as those of the task are.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from asyncrl.config.schema import TaskConfig
from asyncrl.escape import escaped
from asyncrl.files import read_regular
from asyncrl.tasks import TaskError
from asyncrl.tasks.template import render
from asyncrl.tasks.text import Tokenizer

BYTES = 2**30
"""Bytes of the file, at most: all of it is in memory."""


class Example(msgspec.Struct):
    """A line of the file.

    >>> msgspec.json.decode('{"prompt": "2 + 2 =", "response": "4"}', type=Example).response
    '4'
    """

    prompt: str
    response: str


class ExampleIds(NamedTuple):
    """The ids of a prompt, and of its response and the end of that.

    >>> len(ExampleIds(prompt=[5, 6], response=[7, 8, 2]).response)
    3
    """

    prompt: list[int]
    response: list[int]


def read_examples(path: Path) -> list[Example]:
    """All lines. Raises TaskError, with file and line number if a line is wrong."""
    try:
        lines = read_regular(path, BYTES).splitlines()
    except OSError as error:
        raise TaskError(
            f"supervised.path is {str(path)!r}, which cannot be read ({error.strerror}); give a "
            "JSONL file of prompt and response"
        ) from error
    examples = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            example = msgspec.json.decode(line, type=Example)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TaskError(
                f"line {number} of {path} is not an example: {escaped(str(error), 200)}; each is "
                "an object with prompt and response"
            ) from error
        if not example.response:
            raise TaskError(f"line {number} of {path} has an empty response; take it out")
        examples.append(example)
    if not examples:
        raise TaskError(f"{path} has no lines; each is an object with prompt and response")
    return examples


def tokenized(
    examples: list[Example], tokenizer: Tokenizer, task: TaskConfig, most: int
) -> list[ExampleIds]:
    """The ids of each example, at most `most`. Raises TaskError if one has more, or the model
    has no end of a text."""
    if (end := tokenizer.end_id) is None:
        raise TaskError(
            "the model's files name no eos_token, so no response could be taught to end; name it "
            "in tokenizer_config.json"
        )
    tokenized_examples = []
    for number, example in enumerate(examples, 1):
        prompt = tokenizer.encode(render(task, example.prompt))
        ids = ExampleIds(prompt, [*tokenizer.ids(example.response), end])
        if not prompt:
            raise TaskError(f"example {number} of supervised.path has an empty prompt; take it out")
        if (length := len(prompt) + len(ids.response)) > most:
            raise TaskError(
                f"example {number} of supervised.path has {length} tokens, and "
                f"engine.context_tokens is {most}; take it out, or raise that"
            )
        rows, highest = tokenizer.embedded, max(*prompt, *ids.response)
        if rows and highest >= rows:
            raise TaskError(
                f"example {number} of supervised.path has the token {highest}, and the model's "
                f"embedding has {rows} rows; take it out, or give a model that knows the token"
            )
        tokenized_examples.append(ids)
    return tokenized_examples
