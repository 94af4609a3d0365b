"""Moments in host memory, beside weights on a GPU. Invariant: a step leaves no copy under way."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from asyncrl.training.ranks.stand_in import divided_like, local
from asyncrl.training.small_moments import FIRST, SECOND

HOST = torch.device("cpu")


class OnHost:
    """Float32 moments in host memory, pinned for a GPU's weights: none of its own bytes. Satisfies
    `Moments`."""

    def zeros(self, weight: Tensor) -> dict[str, Tensor]:
        """Zeros of the shape of the weight, or of this rank's shard of it."""
        own = local(weight)
        found = {}
        for name in (FIRST, SECOND):
            zeros = torch.zeros_like(own, device=HOST, pin_memory=own.is_cuda)
            found[name] = divided_like(weight, zeros, weight.shape)
        return found

    def device_of(self, weight: Tensor) -> torch.device:
        """Host memory, for matrices."""
        return HOST if weight.dim() > 1 else weight.device

    def read(self, kept: Mapping[str, Tensor], name: str, device: torch.device) -> Tensor:
        """A copy on the weight's device."""
        return kept[name].to(device, copy=True)

    def write(
        self, kept: Mapping[str, Tensor], name: str, value: Tensor, draws: torch.Generator
    ) -> None:
        """Copy them back, and wait for it: a checkpoint reads them without the GPU."""
        kept[name].copy_(value)
