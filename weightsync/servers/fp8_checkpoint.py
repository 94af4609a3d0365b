"""A model's weights as servers with fp8 weights load them: under the names of its checkpoint, those
of linear layers in fp8 blocks, each followed by its scales, as in DeepSeek-V3's files.

    model.layers.0.mlp.up_proj.weight             float8_e4m3fn [384, 256]
    model.layers.0.mlp.up_proj.weight_scale_inv   float32 [3, 2]

The quantizer is ours, and a model that was rounded in training loses nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.training.fp8_blocks import quantized
from asyncrl.training.rounding import linear_weights
from asyncrl.weightsync.servers.server_names import SCALES


class Fp8Checkpoint(CheckpointNames):
    """`CheckpointNames` whose tensors are in fp8 blocks where fp8 rounds them. Raises ModelError
    for a model that fp8 blocks do not fit."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._in_blocks = self.names_of(linear_weights(model))

    def of_group(self, place: int, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """As `CheckpointNames.of_group`, a copy of each weight that is quantized."""
        for name, tensor in super().of_group(place, weights):
            if name in self._in_blocks:
                numbers, scales = quantized(tensor)
                yield name, numbers
                yield name + SCALES, scales
            else:
                yield name, tensor


def checkpoint_of(model: PreTrainedModel, sent: str) -> CheckpointNames:
    """The tensors that servers are sent of a model, by `publication.dtype`. Raises ModelError."""
    return Fp8Checkpoint(model) if sent == "fp8" else CheckpointNames(model)
