"""Prompts from a JSONL file. Invariant: every line is parsed and checked before the first prompt is
returned.

A line is an object with `prompt`, `answer` (text, or a number; with the verifier `run` it may be
left out), optionally `verifier`, and any other key that its verifier reads. Only eight bytes a line
stay in memory: its offset. Held-out prompts never train: lines of the training split with a
held-out prompt are left out.
"""

from __future__ import annotations

import hashlib
import math
import os
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncrl.config.schema import TaskConfig
from asyncrl.files import open_regular
from asyncrl.messages import Split
from asyncrl.tasks import Figures, MaskedReward, NoReward, TaskError, as_number
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.line_hints import hint
from asyncrl.tasks.partial_credit import settled_reward
from asyncrl.tasks.template import RIGHT, render
from asyncrl.tasks.verifier_table import VerifierTable
from asyncrl.tasks.verifiers import rewarded
from asyncrl.tasks.verifiers.run import ProgramRun

LINE_BYTES = 16 * 2**20


class Line(msgspec.Struct):
    """Keys of a line that do not belong to its verifier, and `answer`, which nearly all need.

    >>> msgspec.json.decode('{"prompt": "2 + 2 =", "answer": 4, "hard": true}', type=Line).answer
    4
    """

    prompt: str
    answer: str | int | float | msgspec.UnsetType = msgspec.UNSET
    verifier: str = ""


class JsonlTask:
    """`task.path`, with `task.eval_path` or its own last `task.eval_size` lines held out.

    >>> import tempfile
    >>> lines = [f'{{"prompt": "{n} + {n} =", "answer": {2 * n}}}\\n' for n in range(3)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (file := Path(folder, "sums.jsonl")).write_text("".join(lines))
    ...     task = JsonlTask(TaskConfig(name="jsonl", path=str(file), eval_size=1))
    ...     task.prompt("evaluation", 0), task.verify("evaluation", 0, " 4")
    ('2 + 2 =\\n', 1.0)
    """

    def __init__(self, config: TaskConfig) -> None:
        """Raises TaskError, with file and line number if a line is wrong."""
        if not config.path:
            raise TaskError("task.name = 'jsonl' needs task.path, the file of prompts")
        self._config = config
        self._exact = settled_reward(config) == "exact"
        run = ProgramRun(verdict_s=config.verdict_s, all_or_nothing=self._exact)
        self._verifiers = VerifierTable(config.verifier, run)
        train = _File(config.path, self._verifiers)
        if config.eval_path and config.eval_size:
            held_out, rows = _File(config.eval_path, self._verifiers), range(train.lines)
            held_rows = range(min(config.eval_size, held_out.lines))
        else:
            first = max(train.lines - config.eval_size, 0)
            held_out, rows, held_rows = train, range(first), range(first, train.lines)
        digests = {held_out.digests[row] for row in held_rows}
        rows_left = array("Q", (row for row in rows if train.digests[row] not in digests))
        self._repeated = _repeated(array("Q", (train.digests[row] for row in rows_left)))
        self._lines: dict[Split, tuple[_File, array[int]]] = {
            "train": (train, array("Q", (train.starts[row] for row in rows_left))),
            "evaluation": (held_out, array("Q", (held_out.starts[row] for row in held_rows))),
        }
        if self._exact and (several := self._verifiers.several):
            raise TaskError(
                f"task.reward = 'exact' is one number, and the verifier {several!r} gives several "
                "rewards by name: set task.reward = 'score'"
            )
        lines = train.lines
        train.forget()
        held_out.forget()
        last = 0 if config.eval_path and config.eval_size else lines - first
        self._shared = lines - last - self.size("train")
        if not self.size("train"):
            raise TaskError(
                f"{config.path} leaves no prompt to train on: {_left(lines, last, self._shared)}; "
                "set task.eval_size lower, or give other prompts in task.eval_path"
            )

    @property
    def executes(self) -> bool:
        return self._verifiers.executes

    @property
    def languages(self) -> frozenset[str]:
        return frozenset(self._verifiers.languages)

    @property
    def writes(self) -> bool:
        return True  # its verifiers are the user's

    @property
    def notes(self) -> list[str]:
        notes = list[str]()
        if self._shared:
            notes.append(
                f"{self._shared:,} lines have the prompt of a held-out one and do not train: "
                f"{self.size('train'):,} are left"
            )
        if count := self._repeated:
            notes.append(
                f"{count:,} {'line has' if count == 1 else 'lines have'} the prompt of an earlier "
                "line; each trains as a prompt of its own"
            )
        if empty := self._verifiers.empty:
            notes.append(
                f"{empty:,} {'line has an' if empty == 1 else 'lines have an'} empty answer, which "
                "a response without text gets right"
            )
        return notes

    def warm(self) -> str:
        return self.prompt("train", 0)

    def size(self, split: Split) -> int:
        return len(self._lines[split][1])

    def prompt(self, split: Split, prompt_index: int) -> str:
        return render(self._config, str(self.entry(split, prompt_index)["prompt"]))

    def answer(self, split: Split, prompt_index: int) -> str | None:
        answer = self.entry(split, prompt_index).get("answer")
        return None if answer is None else str(answer)

    def verify(self, split: Split, prompt_index: int, answer: str) -> float:
        entry = self.entry(split, prompt_index)
        verifier = self._verifiers.find(entry.get("verifier", ""))
        reward: float = rewarded(verifier, verifier(Answer.of(answer), entry))
        return _exactly(reward) if self._exact else reward

    def entry(self, split: Split, prompt_index: int) -> dict[str, Any]:
        """The line, as an object."""
        if not 0 <= prompt_index < self.size(split):
            raise IndexError(
                f"prompt {prompt_index} is outside the {split} split of {self.size(split)}"
            )
        file, starts = self._lines[split]
        return file.read(starts[prompt_index])


def _left(lines: int, last: int, shared: int) -> str:
    """The reason why no line of a file trains, in words.

    >>> _left(12, 4, 8)
    'of its 12 lines 4 are held out, and 8 have the prompt of a held-out one'
    """
    counts = [f"{last} are held out"] * bool(last)
    counts += [f"{shared} have the prompt of a held-out one"] * bool(shared)
    return f"of its {lines} lines {', and '.join(counts)}"


def _repeated(digests: array[int]) -> int:
    """Number of digests that are equal to an earlier one.

    >>> _repeated(array("Q", [1, 2, 1, 1]))
    2
    """
    return len(digests) - len(np.unique(np.frombuffer(digests, np.uint64)))


def _exactly(reward: Any) -> Any:
    """1 for a right answer and 0 for any other; a value that is not a finite number, or too large
    for a float, stays as it is."""
    if isinstance(reward, Figures):
        return Figures(_exactly(reward.reward), reward.figures)
    if isinstance(reward, MaskedReward):
        return MaskedReward(_exactly(float(reward)), reward.errors)
    try:
        number = as_number(reward)
    except NoReward:
        return reward
    return float(number >= RIGHT) if math.isfinite(number) else reward


class _File:
    """A JSONL file, checked; lines are read again when asked for, by any thread."""

    def __init__(self, path: str, verifiers: VerifierTable) -> None:
        self._path = path
        self.starts = array("Q")
        self.digests = array("Q")
        try:
            self._file = open_regular(Path(path))  # open as long as the task
            for start, line in self._checked(verifiers):
                self.starts.append(start)
                self.digests.append(
                    int.from_bytes(hashlib.blake2b(line.prompt.encode(), digest_size=8).digest())
                )
        except OSError as error:
            raise TaskError(
                f"{path} cannot be read: {error.strerror}; task.path and task.eval_path name "
                "JSONL files"
            ) from error
        if not self.starts:
            raise TaskError(f"{path} has no lines; each is an object with prompt and answer")

    @property
    def lines(self) -> int:
        return len(self.starts)

    def forget(self) -> None:
        """Free what only the choice of splits needed."""
        self.starts = self.digests = array("Q")

    def read(self, start: int) -> dict[str, Any]:
        size = 4096
        while (
            b"\n" not in (block := os.pread(self._file.fileno(), size, start))
            and len(block) == size
        ):
            size *= 4
        entry: dict[str, Any] = msgspec.json.decode(block.partition(b"\n")[0])
        return entry

    def _checked(self, verifiers: VerifierTable) -> Iterator[tuple[int, Line]]:
        decoder, start = (
            msgspec.json.Decoder(dict[str, Any]),
            0,
        )  # all of it: what a verifier will read must parse too
        for count, text in enumerate(iter(partial(self._file.readline, LINE_BYTES + 1), b""), 1):
            if len(text) > LINE_BYTES:
                raise TaskError(
                    f"{self._path}, line {count}: it is longer than {LINE_BYTES >> 20} MiB; each "
                    "line is one prompt"
                )
            if text.strip():
                try:
                    entry = decoder.decode(text)
                    line = msgspec.convert(entry, Line)
                    if not line.prompt.strip():
                        raise LookupError("its prompt is empty")
                    verifiers.check(verifiers.find(line.verifier), entry)
                except (
                    msgspec.DecodeError,
                    UnicodeDecodeError,
                    RecursionError,
                    LookupError,
                ) as error:
                    todo = hint(text, count)
                    raise TaskError(
                        f"{self._path}, line {count}: {error}{f'; {todo}' if todo else ''}"
                    ) from error
                yield start, line
            start += len(text)
