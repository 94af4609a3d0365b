"""Advantages of a micro-batch as tensors, for the trainer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from staleness.advantages.advantage import Advantage, RewardedSamples


class Advantages(NamedTuple):
    """`value`: float32 [samples]. `trainable`: bool [samples]; a sample that is not must be left
    out of the loss and of what it is divided by, and its value is 0.

    >>> Advantages(torch.tensor([0.5, 0.0]), torch.tensor([True, False])).trainable.tolist()
    [True, False]
    """

    value: Tensor
    trainable: Tensor


def advantage_tensors(advantage: Advantage, given: RewardedSamples) -> Advantages:
    """Advantage of each sample of a micro-batch, and which of them are trained.

    >>> from staleness.advantages import Grpo
    >>> advantage_tensors(Grpo(), RewardedSamples([], {}, {})).value.shape
    torch.Size([0])
    """
    values = advantage.of(given)
    return Advantages(
        torch.tensor([0.0 if value is None else value for value in values], dtype=torch.float32),
        torch.tensor([value is not None for value in values], dtype=torch.bool),
    )
