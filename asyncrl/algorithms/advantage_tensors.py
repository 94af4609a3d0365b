"""Advantages of a micro-batch as tensors, for the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.advantage import Advantage, RewardedSamples, Value
from asyncrl.algorithms.advantages.group_weight import GroupWeight, weights_of
from asyncrl.messages import Sample


class Advantages(NamedTuple):
    """`value`: float32 [samples]. `trainable`: bool [samples]; other samples must stay out of the
    loss and its divisor, and their value is 0.

    >>> Advantages(torch.tensor([0.5, 0.0]), torch.tensor([True, False])).trainable.tolist()
    [True, False]
    """

    value: Tensor
    trainable: Tensor


def advantage_tensors(advantage: Advantage, batch: RewardedSamples) -> Advantages:
    """Advantage of each sample of a micro-batch, and which of them are trained. Raises ValueError
    for an advantage that has several values for a sample.

    >>> from asyncrl.algorithms.advantages import Grpo
    >>> advantage_tensors(Grpo(), RewardedSamples([], {}, {})).value.shape
    torch.Size([0])
    """
    values = list[float]()
    trained = list[bool]()
    for value in advantage.of(batch):
        if isinstance(value, Sequence):
            raise ValueError(f"{advantage.kind} has a value for each turn")
        values.append(0.0 if value is None else value)
        trained.append(value is not None)
    return Advantages(
        torch.tensor(values, dtype=torch.float32), torch.tensor(trained, dtype=torch.bool)
    )


def token_values(advantage: Advantage, batch: RewardedSamples) -> Advantages:
    """Advantage of each sampled token of a micro-batch, float32 [tokens] in the order of its
    samples, and which samples are trained. Where the advantage has a value for each turn, a token
    has that of its own turn, in whichever strand the turn is. Raises ValueError as the advantage
    does, where it has not one value for each sample, and where the turns of a sample do not match
    its tokens, or are not turns of its rollout.

    >>> from asyncrl.messages import Span
    >>> from asyncrl.algorithms.advantages import Rloo
    >>> one = Sample(8, 4, 1, 3, 1.0, [Span(0, 1, 4)], member=0)
    >>> token_values(Rloo(), RewardedSamples([one], {4: [1.0, 0.5]}, {})).value.tolist()
    [0.5, 0.5, 0.5]
    """
    found = advantage.of(batch)
    if len(found) != len(batch.samples):
        raise ValueError(
            f"{advantage.kind} gives {len(found)} advantages to {len(batch.samples)} samples; it "
            "must return one for each"
        )
    values, counts = list[float](), list[int]()
    for sample, value in zip(batch.samples, found, strict=True):
        for number, tokens in _pieces(sample, value):
            values.append(number)
            counts.append(tokens)
    return Advantages(
        torch.tensor(values, dtype=torch.float32).repeat_interleave(torch.tensor(counts).long()),
        torch.tensor([value is not None for value in found], dtype=torch.bool),
    )


def sample_weights(weight: GroupWeight, batch: RewardedSamples) -> Tensor:
    """Weight of each sample of a micro-batch, that of its group; float32 [samples]. Raises
    ValueError for one that is no finite number, or negative.

    >>> from asyncrl.algorithms.advantages.group_weight import EqualWeight
    >>> one = Sample(8, 4, 1, 3, 1.0, [], member=0)
    >>> sample_weights(EqualWeight(), RewardedSamples([one], {4: [1.0, 0.5]}, {})).tolist()
    [1.0]
    """
    weights = weights_of(weight, batch)
    return torch.tensor(
        [weights.get(sample.group, 1.0) for sample in batch.samples], dtype=torch.float32
    )


def _pieces(sample: Sample, value: Value) -> list[tuple[float, int]]:
    """The values of a sample's tokens, and how many of them each has."""
    if not isinstance(value, Sequence):
        return [(0.0 if value is None else value, sample.sampled_tokens)]
    tiled = sample.turns or [(0, sample.sampled_tokens)]
    if sum(tokens for _, tokens in tiled) != sample.sampled_tokens or any(
        tokens < 0 or not 0 <= turn < len(value) for turn, tokens in tiled
    ):
        raise ValueError(
            f"the turns of rollout {sample.rollout} in strand {sample.strand} do not match its "
            f"{sample.sampled_tokens} sampled tokens, or its {len(value)} turns"
        )
    return [(value[turn], tokens) for turn, tokens in tiled]
