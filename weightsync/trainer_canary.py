"""The trainer's canary of what it publishes, for engines that compare it. Invariant: it is computed
once a version, in the type that engines compute in, of the weights that they are sent.

However many engines there are, and however often a version is sent again, the forward pass of the
text is one. It takes a copy of the weights while it lasts where engines are sent rounded ones, or
where adapters are merged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property

import trio
from transformers import PreTrainedModel

from asyncrl.engines import canary
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.adapters import adapted, merged
from asyncrl.training.models import parameters_for_publication
from asyncrl.weightsync.narrowed import SentWeights


class TrainerCanary:
    """The canary of the newest version that was asked for. `empty` makes a model as engines have
    it; its own weights are neither read nor written, so they take no memory. Weights are `sent`
    so."""

    def __init__(
        self, empty: Callable[[], PreTrainedModel], sent: SentWeights, tokenizer: Tokenizer
    ) -> None:
        self._empty, self._sent = empty, sent
        self.text = canary.text(tokenizer.vocabulary, tokenizer.stop_ids)
        self._last: tuple[int, list[float]] = (-1, [])

    async def of(self, version: int, model: PreTrainedModel) -> list[float]:
        """Log-probabilities of the text by `model`, whole, whose weights are those of `version` and
        do not change meanwhile."""
        if self._last[0] != version:
            self._last = version, await trio.to_thread.run_sync(self._computed, model)
        return self._last[1]

    async def by_ranks(
        self, version: int, computed: Callable[[], Awaitable[list[float]]]
    ) -> list[float]:
        """Scores that several ranks have `computed` for the text with the weights of `version`."""
        if self._last[0] != version:
            self._last = version, await computed()
        return self._last[1]

    @cached_property
    def _shape(self) -> PreTrainedModel:
        return self._empty()

    def _computed(self, model: PreTrainedModel) -> list[float]:
        whole = merged(model) if adapted(model) else parameters_for_publication(model)
        weights = dict(self._sent.narrowed(whole, model))
        return canary.reference(self._shape, weights, self.text)
