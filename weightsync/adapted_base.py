"""The base of a rollout actor whose trainer publishes adapters. Invariant: an engine gets whole
weights, merged from base and adapters.

So engines need no support for adapters, and decode as fast as without. Only adapters are sent. The
base is read from the run's initial model here too, and the plan of a publication has its digest:
another base is refused where the epoch is joined.

An engine that gets adapters alone (`model.lora.served`) takes the model from here, and merges
nothing (`servers/served_adapters.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from asyncrl.config.schema import LoraConfig
from asyncrl.training.adapters import add_adapters, merged, set_adapters
from asyncrl.training.models import load_model
from asyncrl.weightsync.transport import Received


class AdaptedBase:
    """The run's initial model with adapters, in host memory. Raises ModelError where that fails."""

    def __init__(self, initial: Path, dtype: torch.dtype, lora: LoraConfig) -> None:
        self.model = load_model(initial, dtype)
        add_adapters(self.model, lora)

    def merged(self, received: Received) -> Received:
        """The merged weights of received adapters. It takes a matrix product for each adapter."""
        adapters, average = received.weights, received.average
        assert adapters is not None, "they were staged"
        return Received(
            received.checksums,
            self._whole(adapters),
            None if average is None else self._whole(average),
        )

    def _whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        set_adapters(self.model, tensors)
        return dict(merged(self.model))
