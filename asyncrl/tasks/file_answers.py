"""Foreign answers from a file or a folder: texts in any form of data (`asyncrl/tasks/data/`), or
rows of ids. Invariant: every row is read before the run starts, and nothing of it is trusted: its
tokenizer is the run's, its ids are the model's, and it fits a response.

    {"prompt": "1 + 1 =", "answer": "2"}
    {"prompt_ids": [5, 6], "ids": [7, 2], "logprobs": [-0.1, -0.2], "tokenizer": "b0c1…"}

Prompts are told by their ids, in the form in which the task asks them. In memory stay a digest of
each prompt and the numbers of its rows; a row is read again when its prompt is asked for.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec
import numpy as np

from asyncrl.config.schema import Config
from asyncrl.messages import LEAST_LOGPROB, Finish, ForeignAnswer
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.data_rows import JoinedRows, open_rows
from asyncrl.tasks.supervised_examples import SupervisedExamples
from asyncrl.tasks.text import Tokenizer

ROWS = 2**20
"""Rows of foreign answers that are read, at most."""
SHOWN = 12
"""Characters of a digest in a sentence."""


class IdRow(msgspec.Struct, frozen=True):
    """A row of ids: a prompt, an answer with the id that ends it, where one does, and the
    log-probabilities with which its tokens were sampled, if they are known. `tokenizer` is the
    digest of the tokenizer that the ids are of (`Tokenizer.digest`).

    >>> IdRow([5, 6], [7, 2], "sha256:…", [-0.5, -0.1]).logprobs
    [-0.5, -0.1]
    """

    prompt_ids: list[int]
    ids: list[int]
    tokenizer: str
    logprobs: list[float] | None = None


class FileAnswers:
    """The answers that `foreign.path` has to each prompt.

    >>> import tempfile
    >>> from array import array
    >>> from pathlib import Path
    >>> from asyncrl.config import load
    >>> class Letters:
    ...     digest, sampled, stop_ids, end_id = "letters", 128, {10}, 10
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "answers.jsonl"
    ...     row = '{"prompt_ids": [50, 43, 50], "ids": [52], "tokenizer": "letters"}'
    ...     _ = path.write_text(row)
    ...     config = load(None, ["foreign.source=file", f"foreign.path={path}"], {})
    ...     answers = FileAnswers(config, Letters())
    >>> [answer.source for answer in answers.of(array("i", [50, 43, 50]).tobytes())]
    ['file']
    """

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        """Read all rows once. Raises TaskError for the first that cannot be used."""
        self._config, self._tokenizer = config, tokenizer
        self._most = config.rollout.max_new_tokens
        self._rows = rows = _opened(config.foreign.path)
        self._texts = None if _of_ids(rows) else SupervisedExamples(config, tokenizer, "foreign")
        if (count := len(rows if self._texts is None else self._texts)) > ROWS:
            raise TaskError(
                f"foreign answers: {config.foreign.path} has {count:,} rows, and at most {ROWS:,} "
                "are read; take some out"
            )
        self._numbers = defaultdict[bytes, list[int]](list)
        for number in range(count):
            prompt, _ = self._read(number)
            self._numbers[_digest(prompt)].append(number)

    def __len__(self) -> int:
        return sum(map(len, self._numbers.values()))

    def of(self, prompt: bytes) -> Sequence[ForeignAnswer]:
        """The answers to a prompt (`int32` ids), each of version 0."""
        found = (self._read(number) for number in self._numbers.get(_digest(prompt), ()))
        return [answer for asked, answer in found if asked == prompt]

    def unknown(self, prompts: Iterable[bytes]) -> str:
        """The place of the first row whose prompt is none of these; empty if all are."""
        known = set(map(_digest, prompts))
        numbers = (rows[0] for asked, rows in self._numbers.items() if asked not in known)
        first = min(numbers, default=None)
        if first is None:
            return ""
        return (self._rows if self._texts is None else self._texts).place(first)

    def _read(self, number: int) -> tuple[bytes, ForeignAnswer]:
        """The prompt of a row, and its answer. Raises TaskError with its place."""
        if self._texts is not None:
            example, where = self._texts[number], self._texts.place(number)
            return self._answer(where, example.prompt, example.response, None)
        where = self._rows.place(number)
        try:
            row = msgspec.convert(self._rows.row(number), IdRow)
        except (LookupError, msgspec.ValidationError) as error:
            raise TaskError(
                f"foreign answers: {where} is no row of prompt_ids, ids and tokenizer: {error}"
            ) from None
        if row.tokenizer != self._tokenizer.digest:
            raise TaskError(
                f"foreign answers: {where} is of the tokenizer {row.tokenizer[:SHOWN]!r}, and the "
                f"model's is {self._tokenizer.digest[:SHOWN]!r}: give the answers as text, or ids "
                "of this one"
            )
        return self._answer(where, row.prompt_ids, row.ids, row.logprobs)

    def _answer(
        self, where: str, prompt: list[int], ids: list[int], logprobs: list[float] | None
    ) -> tuple[bytes, ForeignAnswer]:
        wrong = self._wrong(prompt, ids, logprobs)
        if wrong:
            raise TaskError(f"foreign answers: {where} {wrong}")
        ended = ids[-1] in self._ends
        finish: Finish = "stop" if ended else "length"
        answer = ForeignAnswer(
            "file",
            where,
            0,
            np.array(ids, np.int32).tobytes(),
            np.array(logprobs or [], np.float32).tobytes(),
            finish,
        )
        return np.array(prompt, np.int32).tobytes(), answer

    def _wrong(self, prompt: list[int], ids: list[int], logprobs: list[float] | None) -> str:
        """The fault of a row, as the rest of a sentence; empty if it has none."""
        if not prompt or not ids:
            return "has no token in its prompt or its answer; take it out"
        if len(ids) > self._most:
            return (
                f"has an answer of {len(ids):,} tokens, and rollout.max_new_tokens is "
                f"{self._most:,}; take it out, or raise that"
            )
        if not all(0 <= one < self._tokenizer.sampled for one in (*prompt, *ids)):
            return f"has an id outside of 0 to {self._tokenizer.sampled - 1:,}, the model's"
        if logprobs is not None and (
            len(logprobs) != len(ids) or not all(LEAST_LOGPROB <= p <= 0 for p in logprobs)
        ):
            return (
                f"has {len(ids)} ids and {len(logprobs)} logprobs: give one for each, from "
                f"{LEAST_LOGPROB:g} to 0, or none"
            )
        return ""

    @cached_property
    def _ends(self) -> frozenset[int]:
        ends = {*self._tokenizer.stop_ids, self._tokenizer.end_id}
        return frozenset(one for one in ends if one is not None)


def _opened(path: str) -> JoinedRows:
    try:
        return open_rows(path)
    except TaskError as error:
        text = str(error).replace("task.path and task.eval_path name", "foreign.path names")
        raise TaskError(f"foreign answers: {text}") from None


def _of_ids(rows: JoinedRows) -> bool:
    """Return True if the first row is one of ids."""
    try:
        first = rows.row(0)
    except LookupError:
        return False
    return isinstance(first, dict) and "ids" in first


def _digest(prompt: bytes) -> bytes:
    return hashlib.blake2b(prompt, digest_size=16).digest()
