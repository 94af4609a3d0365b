"""Prompts of a run, as ids. Invariant: the next one follows from the settings, the history and live
groups, so a resumed run continues with the same (asyncrl/algorithms/selection).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from asyncrl.algorithms.selection.curriculum import NextPrompt, PromptOrder
from asyncrl.algorithms.selection.mixed_order import MixedOrder, TaskPart
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config.asked_rules import next_prompt
from asyncrl.config.selection_names import CURRICULA
from asyncrl.config.strategies import blamed
from asyncrl.messages import Split
from asyncrl.tasks.prompt import ChatPrompt, Prompt


class Source(Protocol):
    """Prompts by split and place (a task)."""

    def size(self, split: Split) -> int: ...

    def prompt(self, split: Split, prompt_index: int) -> Prompt: ...


class ReadPrompt(NamedTuple):
    """A prompt as a model reads it: its token ids, int32 [tokens], and the hashes of the images
    that its placeholders stand for.

    >>> ReadPrompt(bytes(4)).images
    ()
    """

    ids: bytes
    images: tuple[str, ...] = ()


Shown = Callable[[ChatPrompt], tuple[list[int], Sequence[str]]]
"""Ids of a prompt with images, and the hashes of these, which are kept."""


class Encoder(Protocol):
    """Prompts to ids."""

    @property
    def sampled(self) -> int:
        """Number of different ids that the model can sample."""
        ...

    @property
    def embedded(self) -> int:
        """Rows of the model's embedding, 0 where that is not known."""
        ...

    def encode(self, prompt: Prompt, /) -> list[int]: ...


class PromptSource:
    """The training prompts, chosen by the `curriculum` from a stream of epochs, and the held-out
    ones in their order."""

    def __init__(
        self,
        source: Source,
        encoder: Encoder,
        *,
        seed: int,
        epochs: int,
        curriculum: str = "in_order",
        parts: Sequence[TaskPart] = (),
        stages: Sequence[int] = (),
        shown: Shown | None = None,
    ) -> None:
        """`parts` are the tasks, if there are several, and `stages` the places at which their next
        shares begin. `shown` reads prompts with images."""
        self._shown = shown
        self._source = source
        self._encoder = encoder
        self._parts = parts
        self._stream = (
            MixedOrder(parts, stages=stages, seed=seed, epochs=epochs)
            if parts
            else PromptOrder(source.size("train"), seed=seed, epochs=epochs)
        )
        self._name = curriculum
        with blamed("curriculum", curriculum):
            self._curriculum = CURRICULA.find(curriculum)(self._stream)

    @property
    def vocabulary(self) -> int:
        """Number of ids that can be sampled: every sampled id is smaller."""
        return self._encoder.sampled

    @property
    def embedded(self) -> int:
        """Number of ids that the model can read: each of them is smaller. 0: not known."""
        return self._encoder.embedded

    def next(self, history: History, live: Container[int]) -> NextPrompt | None:
        """Return the training prompt to admit; None when the epochs are over (0 epochs: never).
        Raises StrategyError for a choice that is none of them."""
        return next_prompt(self._name, self._curriculum, history, live, self._source.size("train"))

    def train_item(self, position: int) -> int | None:
        """Return the prompt at a position in the stream; None when the epochs are over."""
        return None if self._stream.over(position) else self._stream.prompt_index(position)

    def evaluation_items(self) -> range:
        return range(self._source.size("evaluation"))

    def label(self, split: Split, prompt_index: int) -> str:
        """Return the label of a prompt's task; empty where there is one task."""
        for part in self._parts:
            if prompt_index < part.sizes[split]:
                return part.label
            prompt_index -= part.sizes[split]
        return ""

    def ids(self, split: Split, prompt_index: int) -> bytes:
        """Return the prompt's token ids: int32, [tokens]."""
        return self.read(split, prompt_index).ids

    def read(self, split: Split, prompt_index: int) -> ReadPrompt:
        """Return the prompt's token ids and images."""
        images: Sequence[str] = ()
        prompt = self._source.prompt(split, prompt_index)
        if self._shown is not None and isinstance(prompt, ChatPrompt) and prompt.images:
            ids, images = self._shown(prompt)
        else:
            ids = self._encoder.encode(prompt)
        return ReadPrompt(np.asarray(ids, np.int32).tobytes(), tuple(images))
