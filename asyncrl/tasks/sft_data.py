"""The data of a supervised run: its rows as sequences for a learner, and the rows of each step.
Invariant: what a step trains is a function of the settings, the data and the seed, so a resumed run
has no state to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, groupby
from typing import NamedTuple

import numpy as np

from asyncrl.config.schema import Config
from asyncrl.config.sft import BASELINE, REWARD, steps_of_epochs
from asyncrl.experience.micro_batches import micro_batches
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.experience.training_message import TrainingMessage, training_message
from asyncrl.messages import Sample, Span
from asyncrl.tasks import TaskError
from asyncrl.tasks.conversations import LearnedIds, answered, conversation, end_of
from asyncrl.tasks.sft_rows import RowSplit, SftRow, sft_rows
from asyncrl.tasks.text import Tokenizer

Sequences = tuple[TrainingSequence, ...]
"""Those of one row."""


class SftSplit(NamedTuple):
    """The rows of a split that are used, each as its sequences, of so many `tokens`, of which so
    many are `learned`. Of all rows so many were `too_long`: dropped, or cut. So many training rows
    had the prompt of a `held_out` one, and are left out.

    >>> SftSplit([], too_long=3).held_out
    0
    """

    rows: list[Sequences]
    tokens: int = 0
    learned: int = 0
    too_long: int = 0
    held_out: int = 0


class SftData(NamedTuple):
    """The data of a supervised run; `said` says how it was read, if that needs a word.

    >>> rows = [(as_sequence(LearnedIds([5, 6], bytes([0, 1]))),)] * 3
    >>> data = SftData(SftSplit(rows), SftSplit([]), Config(task={"epochs": 2}))
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
        if not self.config.task.epochs:
            return self.config.train.steps
        return steps_of_epochs(self.config, sum(1 for _ in self.step_rows()))

    def step_rows(self) -> Iterator[list[int]]:
        """The rows of each step, in order; without `task.epochs` there is no end. Every epoch has
        each row once, in an order of its own; a step may begin in one and end in the next."""
        train, task = self.config.train, self.config.task
        learned = [sum(one.trained for one in row) for row in self.train.rows]
        rows, tokens = list[int](), 0
        for epoch in range(task.epochs) if task.epochs else count():
            draws = np.random.default_rng([self.config.run.seed, epoch])
            for row in draws.permutation(len(learned)).tolist():
                rows.append(row)
                tokens += learned[row]
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
        for index, batch in enumerate(
            micro_batches(pieces, _tokens, self.config.train.micro_tokens)
        ):
            yield training_message(
                step, index, batch, {}, step, mask_truncated=False, whole_step=False
            )


def open_sft_data(
    config: Config, tokenizer: Tokenizer, doing: Callable[[int, int], None] = lambda done, of: None
) -> SftData:
    """Read and tokenize the data of a supervised run, for the model with this tokenizer. `doing` is
    told of the rows done, and of all. Raises TaskError."""
    train, most = config.train, 0
    if not config.task.epochs and not train.step_tokens:
        most = train.steps * train.batch_groups  # a task makes its rows as they are asked for
    splits = sft_rows(config.task, config.run.seed, most)
    end_of(tokenizer)
    done, every = count(1), splits.train.size + splits.held_out.size
    asked = set[bytes]()  # by held-out rows

    def read(split: RowSplit, *, held_out: bool) -> SftSplit:
        kept, too_long, repeated = list[Sequences](), 0, 0
        for row in split.rows():
            doing(next(done), every)
            if held_out:
                asked.add(row.asked)
            elif row.asked in asked:
                repeated += 1
                continue
            sequences, long = _fitting(config, _learned(config, tokenizer, row))
            too_long += long
            if sequences:
                kept.append(sequences)
        tokens = sum(one.tokens for row in kept for one in row)
        learned = sum(one.trained for row in kept for one in row)
        return SftSplit(kept, tokens, learned, too_long, repeated)

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


def _learned(config: Config, tokenizer: Tokenizer, row: SftRow) -> list[LearnedIds]:
    """The sequences of a row; of a conversation, for a model without a chat template, the last
    answer behind all else as one text. Raises TaskError with its place."""
    try:
        if row.messages and (config.task.chat or tokenizer.has_template):
            found = conversation(tokenizer, row.messages, row.tools, config.sft.loss_on)
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


def _fitting(config: Config, found: Sequence[LearnedIds]) -> tuple[Sequences, bool]:
    """The sequences of a row that fit in the context, and whether any did not. A row is dropped
    whole, or each of its sequences is cut; one without a learned token is left out."""
    most = config.engine.context_tokens
    if all(len(one.ids) <= most for one in found):
        return tuple(map(as_sequence, found)), False
    if config.sft.too_long == "drop":
        return (), True
    cut = (LearnedIds(one.ids[:most], one.mask[:most]) for one in found)
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
    )


def _tokens(piece: tuple[Sample, TrainingSequence]) -> int:
    return piece[0].prompt_tokens + piece[0].response_tokens
