"""The data of a supervised run: its rows as sequences for a learner, and the rows of each step.
Invariant: what a step trains is a function of the settings, the data and the seed, so a resumed run
has no state to read.

Every row is read and tokenized once before the first step, so a bad one is told with its place. In
memory stay the numbers of the rows that are used, and of their tokens; a row is read again when its
step comes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import count, groupby
from typing import NamedTuple, overload

import numpy as np

from asyncrl.config.errors import ConfigError
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.config.schema import Config
from asyncrl.config.sft import BASELINE, REWARD, steps_of_epochs
from asyncrl.config.vision import untrained
from asyncrl.experience.micro_batches import micro_batches
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.experience.training_message import TrainingMessage, training_message
from asyncrl.messages import Sample, Span
from asyncrl.tasks import TaskError
from asyncrl.tasks.conversations import LearnedIds, end_of, images_shown
from asyncrl.tasks.images.pixels import image_hash
from asyncrl.tasks.sft_rows import RowSplit, SftRow, learned_ids, sft_rows
from asyncrl.tasks.text import Tokenizer

Sequences = tuple[TrainingSequence, ...]
"""Those of one row."""
KEPT = 4096
"""Rows whose sequences are kept, at most: those of small data are made once."""
MANY = 16
"""Messages of a row whose last answer, which has all others before it, is looked at first."""
COUNTED = 10**8
"""Rows of all epochs that are divided into steps by their tokens before a run, at most: half a
minute."""


class UsedRows(Sequence[Sequences]):
    """The rows of a split that are used, by their `numbers` in it, each as its sequences, which are
    made when they are asked for; the last of them are kept.

    >>> rows = UsedRows([4, 7], lambda number: [f"row {number}"])
    >>> len(rows), rows[1], rows[:1]
    (2, ['row 7'], [['row 4']])
    """

    def __init__(self, numbers: Sequence[int], made: Callable[[int], Sequences]) -> None:
        self._numbers, self._made = numbers, lru_cache(KEPT)(made)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Sequences: ...

    @overload
    def __getitem__(self, at: slice) -> list[Sequences]: ...

    def __getitem__(self, at: int | slice) -> Sequences | list[Sequences]:
        if isinstance(at, slice):
            return [self._made(number) for number in self._numbers[at]]
        return self._made(self._numbers[at])


class SftSplit(NamedTuple):
    """The rows of a split that are used, each as its sequences, of so many `tokens`, the `longest`
    sequence of so many; each row has so many learned ones (`each`). Of all rows so many were
    `too_long`: dropped, or cut. So many training rows had the prompt of a `held_out` one, and are
    left out.

    >>> rows = [(as_sequence(LearnedIds([5, 6], bytes([0, 1]))),)]
    >>> SftSplit.of(rows).learned
    1
    """

    rows: Sequence[Sequences]
    each: Sequence[int]
    tokens: int = 0
    longest: int = 0
    too_long: int = 0
    held_out: int = 0

    @classmethod
    def of(cls, rows: Sequence[Sequences]) -> SftSplit:
        """These rows, of which none was left out."""
        tokens = [one.tokens for row in rows for one in row]
        each = [sum(one.trained for one in row) for row in rows]
        return cls(rows, each, sum(tokens), max(tokens, default=0))

    @property
    def learned(self) -> int:
        """Learned tokens of all rows."""
        return sum(self.each)


class SftData(NamedTuple):
    """The data of a supervised run; `said` says how it was read, if that needs a word.

    >>> rows = [(as_sequence(LearnedIds([5, 6], bytes([0, 1]))),)] * 3
    >>> data = SftData(SftSplit.of(rows), SftSplit.of([]), Config(task={"epochs": 2}))
    >>> data.steps, [len(step) for step in data.step_rows()]
    (1, [6])
    """

    train: SftSplit
    held_out: SftSplit
    config: Config
    said: str = ""

    @property
    def steps(self) -> int:
        """The steps of the run: what `task.epochs` ask for, or `train.steps`. Raises
        ConfigError."""
        train, rows = self.config.train, len(self.train.each) * self.config.task.epochs
        if not rows:
            return train.steps
        if not train.step_tokens:
            return steps_of_epochs(self.config, -(-rows // train.batch_groups))
        if rows > COUNTED:
            raise ConfigError(
                f"task.epochs = {self.config.task.epochs} of {len(self.train.each)} rows are more "
                f"than the {COUNTED} rows that are counted for train.step_tokens: lower "
                "task.epochs, or set step_tokens to 0."
            )
        return steps_of_epochs(self.config, sum(1 for _ in self.step_rows()))

    def step_rows(self) -> Iterator[list[int]]:
        """The rows of each step, in order; without `task.epochs` there is no end. Every epoch has
        each row once, in an order of its own; a step may begin in one and end in the next."""
        train, task = self.config.train, self.config.task
        each = self.train.each
        rows, tokens = list[int](), 0
        for epoch in range(task.epochs) if task.epochs else count():
            draws = np.random.default_rng([self.config.run.seed, epoch])
            for row in map(int, draws.permutation(len(each))):
                rows.append(row)
                tokens += each[row]
                if (
                    tokens >= train.step_tokens
                    if train.step_tokens
                    else (len(rows) >= train.batch_groups)
                ):
                    yield rows
                    rows, tokens = [], 0
        if rows:
            yield rows

    def messages(self, step: int, rows: Sequence[Sequences]) -> Iterator[TrainingMessage]:
        """Rows as micro-batches of a step. Each token counts as sampled by version 0, which is not
        too old for any step."""
        pieces = [
            [
                (one.sample(number, number, REWARD, baseline=BASELINE, strand=strand), one)
                for strand, one in enumerate(row)
            ]
            for number, row in enumerate(rows)
        ]
        for index, batch in enumerate(micro_batches(pieces, _tokens, micro_tokens(self.config))):
            yield training_message(
                step, index, batch, {}, step, mask_truncated=False, whole_step=False
            )


def open_sft_data(
    config: Config,
    tokenizer: Tokenizer,
    doing: Callable[[int, int], None] = lambda done, of: None,
    keep: Callable[[bytes], str] = image_hash,
) -> SftData:
    """Read and tokenize the data of a supervised run, for the model with this tokenizer. `doing` is
    told of the rows done, and of all; `keep` keeps an image, and gives its hash. Raises
    TaskError."""
    train, most = config.train, 0
    if not config.task.epochs and not train.step_tokens:
        most = train.steps * train.batch_groups  # a task makes its rows as they are asked for
    splits = sft_rows(config.task, config.run.seed, most)
    end_of(tokenizer)
    done, every = count(1), splits.train.size + splits.held_out.size
    asked = set[bytes]()  # by held-out rows

    def sequences_of(row: SftRow) -> tuple[Sequences, bool]:
        most, loss_on = config.engine.context_tokens, config.sft.loss_on
        if config.sft.too_long == "drop" and len(row.messages) > MANY:
            [last] = learned_ids(config.task, tokenizer, row, "last")
            if len(last.ids) > most:  # in a time that grows with its length, not with its square
                return (), True
        found = learned_ids(config.task, tokenizer, row, loss_on, most)
        return _fitting(
            config, _shown(config, tokenizer, row, found, keep) if row.images else found
        )

    def read(split: RowSplit, *, held_out: bool) -> SftSplit:
        kept, each = array("Q"), array("Q")
        tokens = longest = too_long = repeated = 0
        for number in range(split.size):
            row = split.row(number)
            doing(next(done), every)
            if held_out:
                asked.add(row.asked)
            elif row.asked in asked:
                repeated += 1
                continue
            sequences, long = sequences_of(row)
            too_long += long
            if sequences:
                kept.append(number)
                each.append(sum(one.trained for one in sequences))
                tokens += sum(one.tokens for one in sequences)
                longest = max(longest, *(one.tokens for one in sequences))
        rows = UsedRows(kept, lambda number: sequences_of(split.row(number))[0])
        return SftSplit(rows, each, tokens, longest, too_long, repeated)

    held_out = read(splits.held_out, held_out=True)
    trained = read(splits.train, held_out=False)
    if not trained.rows:
        why = (
            f"all {trained.too_long} have more than engine.context_tokens = "
            f"{config.engine.context_tokens} tokens: raise that, or set sft.too_long to cut"
            if trained.too_long
            else "each has the prompt of a held-out one: set task.eval_size to 0, or give other "
            "rows in task.eval_path"
        )
        raise TaskError(f"no row is left to train on, because {why}")
    return SftData(trained, held_out, config, splits.said)


def _shown(
    config: Config,
    tokenizer: Tokenizer,
    row: SftRow,
    found: Sequence[LearnedIds],
    keep: Callable[[bytes], str],
) -> list[LearnedIds]:
    """The sequences of a row, with its images. Raises TaskError."""
    if why := untrained(config):
        raise TaskError(f"{row.where} has an image, and {why}")
    try:
        shown = [(keep(png), parts) for png, parts in map(tokenizer.shown, row.images)]
        token, last = tokenizer.vision.token, found[-1].ids
        images, places = images_shown(row.messages, config.sft.loss_on), last.count(token)
        if places < images and len(last) <= config.engine.context_tokens:  # else it was cut
            raise TaskError(
                f"the chat template leaves out {images - places} of its {images} images: give a "
                "model whose template knows parts of images"
            )
        return [one.showing(token, shown) for one in found]
    except TaskError as error:
        raise TaskError(f"{row.where} cannot be learned: {error}") from error


def _fitting(config: Config, found: Sequence[LearnedIds]) -> tuple[Sequences, bool]:
    """The sequences of a row that fit in the context, and whether any did not. A row is dropped
    whole, or each of its sequences is cut; one without a learned token is left out."""
    most = config.engine.context_tokens
    if all(len(one.ids) <= most for one in found):
        return tuple(map(as_sequence, found)), False
    if config.sft.too_long == "drop":
        return (), True
    cut = (LearnedIds(one.ids[:most], one.mask[:most], one.images) for one in found)
    return tuple(as_sequence(one) for one in cut if one.learned), True


def as_sequence(one: LearnedIds) -> TrainingSequence:
    """A sequence whose learned tokens count as sampled by version 0."""
    spans, at = list[Span](), 0
    for learned, run in groupby(one.mask):
        end = at + len(list(run))
        if learned:
            spans.append(Span(0, at, end))
        at = end
    return TrainingSequence(
        ids=np.asarray(one.ids, "<i4").tobytes(),
        mask=one.mask,
        behaviour=bytes(4 * len(one.ids)),
        spans=tuple(spans),
        images=one.images,
    )


def _tokens(piece: tuple[Sample, TrainingSequence]) -> int:
    return piece[0].prompt_tokens + piece[0].response_tokens
