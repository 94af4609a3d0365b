"""A supervised loss beside that of reinforcement learning. Invariant: the examples of an update are
a function of the seed and the update, so that there is no state to save.

The loss is the mean over the response tokens that were drawn, its own divisor, and not of the
sampled ones. It is that of the model's own distribution, at temperature 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from asyncrl.config.schema import Config
from asyncrl.tasks import TaskError
from asyncrl.tasks.supervised_examples import ExampleIds, SupervisedExamples
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.forward import log_probabilities, shares
from asyncrl.training.packing import pack
from asyncrl.training.ranks.rank import ALONE, Rank

TRIED = 8
"""Times the examples of an update may be tried, where some of large data cannot be learned."""


def open_supervised(config: Config, initial: Path) -> SupervisedLoss | None:
    """The loss of a run's settings, None where they have none; `initial` is the model directory
    that the run starts from. Raises TaskError."""
    settings = config.supervised
    if not settings.coefficient:
        return None
    examples = SupervisedExamples(config, Tokenizer(initial, chat=config.task.chat))
    return SupervisedLoss(examples, settings.coefficient, settings.batch, config.run.seed)


class Examples(Protocol):
    """Examples by their number; one may raise TaskError."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> ExampleIds: ...


class SupervisedLoss:
    """`coefficient` times the mean negative log-likelihood of the responses of `batch` examples,
    drawn again for each update."""

    def __init__(self, examples: Examples, coefficient: float, batch: int, seed: int) -> None:
        self._examples, self._coefficient = examples, coefficient
        self._batch, self._seed = min(batch, len(examples)), seed

    def drawn(self, version: int, update: int) -> list[ExampleIds]:
        """The examples of an update of the step that starts from `version`, all different. One of
        large data that cannot be learned, and was not checked, is left out, with another in its
        place. Raises TaskError if too few can be learned."""
        draws = np.random.default_rng([self._seed, version, update])
        places = draws.choice(len(self._examples), self._batch, replace=False).tolist()
        drawn, tried = list[ExampleIds](), set(places)
        while places:
            try:
                drawn.append(self._examples[places.pop(0)])
            except TaskError:
                if len(tried) == len(self._examples) or len(tried) > TRIED * self._batch:
                    raise
                while (other := int(draws.integers(len(self._examples)))) in tried:
                    pass
                tried.add(other)
                places.append(other)
        return drawn

    def backward(
        self, model: PreTrainedModel, version: int, update: int, rank: Rank = ALONE
    ) -> float:
        """Add the gradient of an update's loss to that of the model's parameters; ranks share the
        passes. Returns the mean, without the coefficient, nats."""
        examples = self.drawn(version, update)
        tokens = sum(len(example.response) for example in examples)
        ids = np.array([i for e in examples for i in (*e.prompt, *e.response)], np.int32)
        lengths = [len(e.prompt) for e in examples], [len(e.response) for e in examples]
        total = 0.0
        every = pack(ids, *lengths, shared=shares(model), device=model.device.type)
        for index in rank.share(every):
            if index is None:
                rank.keep_up(model)
                continue
            loss = -log_probabilities(model, every[index], 1.0).sum()
            (self._coefficient / tokens * loss).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return float(rank.added(torch.tensor(total, dtype=torch.float64))) / tokens
