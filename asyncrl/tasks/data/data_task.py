"""The task of a data set. Invariant: held-out prompts never train, and a row that cannot be read
ends no run.

Every row of a small data set is checked before the first prompt is returned. Of a large one the
first rows, some that are drawn and the held-out ones are; another that is bad raises TaskError when
its turn comes, and so does one with a held-out prompt, and the run drops that prompt by name.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from asyncrl.config.schema import TaskConfig
from asyncrl.messages import Split
from asyncrl.tasks import TaskError
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.data.accepted_answers import accepted, verified
from asyncrl.tasks.data.data_set import DataSet, digest_of, held_out_count
from asyncrl.tasks.data.row_forms import RowForm
from asyncrl.tasks.data.row_reader import ReadRow
from asyncrl.tasks.data.taught_rows import prompt_of
from asyncrl.tasks.images.image_source import beside, is_not_shown
from asyncrl.tasks.judge_request import JudgeRequest
from asyncrl.tasks.later import Later, Loop, loop_of
from asyncrl.tasks.partial_credit import exactly, settled_reward
from asyncrl.tasks.prompt import ChatPrompt, Prompt, text_of
from asyncrl.tasks.reward_forms import OwnVerifier
from asyncrl.tasks.row_keys import keys_of, listed, nearest_key
from asyncrl.tasks.verifier_table import VerifierTable
from asyncrl.tasks.verifiers import BuiltIn, NoAnswer, Verifier, rewarded
from asyncrl.tasks.verifiers.run import ProgramRun


class DataTask:
    """`task.path`, with `task.eval_path` or its own last rows held out (`held_out_count`).

    >>> import tempfile
    >>> from pathlib import Path
    >>> lines = [f'{{"prompt": "{n} + {n} =", "answer": {2 * n}}}\\n' for n in range(3)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (file := Path(folder, "sums.jsonl")).write_text("".join(lines))
    ...     task = DataTask(TaskConfig(name="data", path=str(file), eval_size=1))
    ...     task.prompt("evaluation", 0), task.verify("evaluation", 0, " 4")
    ('2 + 2 =\\n', 1.0)
    """

    def __init__(self, config: TaskConfig) -> None:
        """Raises TaskError, with the place of a row that is wrong."""
        if not config.path:
            raise TaskError("task.name = 'data' needs task.path, the data set of prompts")
        self._config = config
        self._exact = settled_reward(config) == "exact"
        run = ProgramRun(verdict_s=config.verdict_s, all_or_nothing=self._exact)
        self._verifiers = VerifierTable(config.verifier, run)
        self._not_shown = 0
        train = held_out = DataSet(config.path, config.prompt_key, config.answer_key)
        own = not (config.eval_path and config.eval_size)
        first = len(train) - (held_out_count(config, len(train)) if own else 0)
        held_rows = range(first, len(train))
        digests = [self._digest(train, row) for row in train.sample() if train.small or row < first]
        if own:
            of_held_out = digests[first:] if train.small else self._digests(train, held_rows)
        else:
            held_out = DataSet(config.eval_path, config.prompt_key, config.answer_key)
            held_rows = range(min(config.eval_size, len(held_out)))
            looked_at = range(len(held_out)) if held_out.small else held_rows
            of_held_out = self._digests(held_out, looked_at)[: len(held_rows)]
        self._held_out = frozenset(of_held_out)
        self._sets: dict[Split, DataSet] = {"train": train, "evaluation": held_out}
        left: Sequence[int] = range(first)
        self._repeated = self._shared = 0
        if train.small:
            left = array("Q", (row for row in left if digests[row] not in self._held_out))
            self._repeated = _repeated(array("Q", (digests[row] for row in left)))
            self._shared = first - len(left)
        self._rows: dict[Split, Sequence[int]] = {"train": left, "evaluation": held_rows}
        if self._exact and (several := self._verifiers.several):
            raise TaskError(
                f"task.reward = 'exact' is one number, and the verifier {several!r} gives several "
                "rewards by name: set task.reward = 'score'"
            )
        if not left:
            last = len(held_rows) if own else 0
            raise TaskError(
                f"{config.path} leaves no prompt to train on: "
                f"{_left(len(train), last, self._shared)}; "
                "set task.eval_size lower, or give other prompts in task.eval_path"
            )

    def _digests(self, rows: DataSet, indices: Iterable[int]) -> list[int]:
        return [self._digest(rows, index) for index in indices]

    def _digest(self, rows: DataSet, index: int) -> int:
        """Check a row. Returns the digest of its prompt."""
        row = rows.row(index)
        read = rows.read_as_it_is(index, row)
        self._not_shown += is_not_shown(row)
        try:
            for image in read.images:
                beside(rows.folder(index), image, self._config.image_hosts)
            verifier = self._verifiers.find(_named(row))
            entry = _entry(row, read)
            if isinstance(verifier, BuiltIn) and verifier.compares and read.answer is not None:
                if not (answers := accepted(read.answer)):
                    raise LookupError(
                        f"its {rows.form.answer} is no text, number or list of them: name a key "
                        "of it in task.answer_key, or a function of yours in task.verifier"
                    )
                for answer in answers:
                    self._verifiers.check(verifier, {**entry, "answer": answer})
            else:
                self._verifiers.check(verifier, entry)
        except NoAnswer as error:
            # a function of the answer and the row may judge prompts that have no answer
            if rows.form.answer or isinstance(verifier, BuiltIn | OwnVerifier):
                raise TaskError(f"{rows.place(index)}: {_no_answer(rows.form, row)}") from error
        except LookupError as error:
            raise TaskError(f"{rows.place(index)}: {error}") from error
        return digest_of(read)

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
        train, held_out = self._sets["train"], self._sets["evaluation"]
        notes = list(filter(None, (train.said, train.note)))
        if held_out.said != train.said:
            notes.append(f"held-out {held_out.said or 'rows have prompt and answer'}")
        if not train.small:
            notes.append(
                f"{len(train.sample()):,} of {len(train):,} rows were checked: another that cannot "
                "be read, or has a held-out prompt, is dropped when its turn comes"
            )
        if self._shared:
            notes.append(
                f"{self._shared:,} rows have the prompt of a held-out one and do not train: "
                f"{self.size('train'):,} are left"
            )
        if count := self._repeated:
            notes.append(
                f"{count:,} {'row has' if count == 1 else 'rows have'} the prompt of an earlier "
                "row; each trains as a prompt of its own"
            )
        if empty := self._verifiers.empty:
            notes.append(
                f"{empty:,} {'row has an' if empty == 1 else 'rows have an'} empty answer, which "
                "a response without text gets right"
            )
        if count := self._not_shown:
            notes.append(
                f"{count:,} {'row has' if count == 1 else 'rows have'} something like an image "
                "that is not shown: the column image or images must have a path beside the data, "
                "bytes, or a data URL"
            )
        return notes

    @property
    def loop(self) -> Loop | None:
        """The library under which its verifiers run that are `async`; None if none are."""
        return self._verifiers.loop

    def warm(self) -> str:
        return text_of(self.prompt("train", 0))

    def size(self, split: Split) -> int:
        return len(self._rows[split])

    def prompt(self, split: Split, prompt_index: int) -> Prompt:
        """Also raises TaskError for a row of a large data set that cannot be read, or that has a
        held-out prompt."""
        rows, row = self._of(split, prompt_index)
        read = rows.read(row)
        if split == "train" and not rows.small and digest_of(read) in self._held_out:
            raise TaskError(f"{rows.place(row)}: its prompt is held out")
        try:
            return prompt_of(self._config, read, rows.folder(row))
        except LookupError as error:
            raise TaskError(f"{rows.place(row)}: {error}") from error

    def answer(self, split: Split, prompt_index: int) -> str | None:
        rows, row = self._of(split, prompt_index)
        answer = rows.read(row).answer
        return None if answer is None else next(map(str, accepted(answer)), None)

    def verify(self, split: Split, prompt_index: int, answer: str) -> float:
        rows, row = self._of(split, prompt_index)
        whole = rows.row(row)
        read = rows.read_as_it_is(row, whole)
        prompt = prompt_of(self._config, read, rows.folder(row))
        asked = Answer.of(answer)
        if isinstance(prompt, ChatPrompt):
            asked = asked.behind(prompt.messages)
        verifier = self._verifiers.find(_named(whole))
        entry = _entry(whole, read)
        returned = (
            verified(verifier, asked, entry)
            if isinstance(verifier, BuiltIn)
            else verifier(asked, entry)
        )
        reward: Any = None
        if loop := loop_of(verifier):  # the process that judges waits for it
            reward = Later(returned, partial(self._reward, verifier), loop)
        else:
            reward = self._reward(verifier, returned)
        given: float = reward
        return given

    def _reward(self, verifier: Verifier, returned: Any) -> Any:
        """The reward in what a verifier returned. Raises NoReward."""
        reward = rewarded(verifier, returned)
        if self._exact and isinstance(reward, JudgeRequest):
            return msgspec.structs.replace(reward, exact=True)
        return exactly(reward) if self._exact else reward

    def entry(self, split: Split, prompt_index: int) -> dict[str, Any]:
        """The row, as an object: its own keys, with `prompt` and `answer` as they were read."""
        rows, row = self._of(split, prompt_index)
        whole = rows.row(row)
        return _entry(whole, rows.read_as_it_is(row, whole))

    def _of(self, split: Split, prompt_index: int) -> tuple[DataSet, int]:
        if not 0 <= prompt_index < self.size(split):
            raise IndexError(
                f"prompt {prompt_index} is outside the {split} split of {self.size(split)}"
            )
        return self._sets[split], self._rows[split][prompt_index]


def _entry(row: dict[str, Any], read: ReadRow) -> dict[str, Any]:
    entry = {**row, "prompt": read.prompt, "answer": read.answer}
    if read.answer is None:
        del entry["answer"]
    if read.tools:
        entry["tools"] = read.tools
    return entry


def _no_answer(form: RowForm, row: dict[str, Any]) -> str:
    """The reason why a row has no answer, in words."""
    keys = keys_of(row)
    if not form.answer:
        return (
            f"it has {listed(keys)}, and none of these is known as an answer: name its key in "
            "task.answer_key"
        )
    if form.answer.partition(".")[0] in row:
        return f"its {form.answer} is null: take the row out, or name another task.answer_key"
    return f"{form.answer} is missing: it has {listed(keys)}{nearest_key(form.answer, keys)}"


def _named(row: dict[str, Any]) -> str:
    """The verifier that a row names, or none. Raises LookupError."""
    name = row.get("verifier") or ""
    if not isinstance(name, str):
        raise LookupError("its verifier is no text: it is the name of one, or left out")
    return name


def _left(rows: int, last: int, shared: int) -> str:
    """The reason why no row trains, in words.

    >>> _left(12, 4, 8)
    'of its 12 rows 4 are held out, and 8 have the prompt of a held-out one'
    """
    counts = [f"{last} are held out"] * bool(last)
    counts += [f"{shared} have the prompt of a held-out one"] * bool(shared)
    return f"of its {rows} rows {', and '.join(counts)}"


def _repeated(digests: array[int]) -> int:
    """Number of digests that are equal to an earlier one.

    >>> _repeated(array("Q", [1, 2, 1, 1]))
    2
    """
    return len(digests) - len(np.unique(np.frombuffer(digests, np.uint64)))
