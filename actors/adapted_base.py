"""The base of a rollout actor whose trainer publishes adapters. Invariant: an engine is given whole
weights, those that base and adapters make together.

So engines know nothing of adapters, and decode as fast as without. Only adapters are sent. The base
is read from the run's initial model here too, and the plan of a publication has its digest in it:
a base that is another one is refused where the epoch is joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from actors.actor_context import ActorContext
from actors.rollout_actor import Received
from asyncrl.training.adapters import add_adapters, merged, set_adapters
from asyncrl.training.models import load_model


class MergedWeights(NamedTuple):
    """Whole weights that were made of received adapters, and the checksums of these."""

    weights: Mapping[str, Tensor]
    average: Mapping[str, Tensor] | None
    checksums: list[int]


class AdaptedBase:
    """The run's initial model with adapters, in host memory. Raises ModelError where it has none
    to be had."""

    def __init__(self, place: ActorContext) -> None:
        self.model = load_model(place.initial, place.dtype)
        add_adapters(self.model, place.config.model.lora)

    def merged(self, received: Received) -> MergedWeights:
        """The weights of what was received. It takes a matrix product for each adapter."""
        average = received.average
        return MergedWeights(
            self._whole(received.weights),
            None if average is None else self._whole(average),
            received.checksums,
        )

    def _whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        set_adapters(self.model, tensors)
        return dict(merged(self.model))
