"""Advantages of a micro-batch as tensors, for the trainer."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.advantages.advantage import (
    Advantage,
    GroupAdvantage,
    RewardedSamples,
    check_rewards,
)
from asyncrl.algorithms.advantages.rewards_to_go import turn_advantages


class Advantages(NamedTuple):
    """`value`: float32 [samples]. `trainable`: bool [samples]; other samples must stay out of the
    loss and its divisor, and their value is 0.

    >>> Advantages(torch.tensor([0.5, 0.0]), torch.tensor([True, False])).trainable.tolist()
    [True, False]
    """

    value: Tensor
    trainable: Tensor


def advantage_tensors(advantage: Advantage, batch: RewardedSamples) -> Advantages:
    """Advantage of each sample of a micro-batch, and which of them are trained.

    >>> from asyncrl.algorithms.advantages import Grpo
    >>> advantage_tensors(Grpo(), RewardedSamples([], {}, {})).value.shape
    torch.Size([0])
    """
    values = advantage.of(batch)
    return Advantages(
        torch.tensor([0.0 if value is None else value for value in values], dtype=torch.float32),
        torch.tensor([value is not None for value in values], dtype=torch.bool),
    )


def to_go_tensor(advantage: GroupAdvantage, batch: RewardedSamples) -> Tensor:
    """Advantage of each sampled token of a micro-batch: that of its own turn, by rewards to go, in
    whichever strand the turn is. float32 [tokens]. Raises ValueError for rewards that are not
    finite, and where the turns of a sample do not match its tokens, or are not turns of its
    rollout.

    >>> from asyncrl.messages import Sample, Span
    >>> from asyncrl.algorithms.advantages import Rloo
    >>> one = Sample(8, 4, 1, 3, 1.0, [Span(0, 1, 4)], member=0, turns=[(0, 2), (1, 1)])
    >>> turns = {4: [[0.0, 1.0], [0.5]]}
    >>> to_go_tensor(Rloo(), RewardedSamples([one], {4: [1.0, 0.5]}, {}, turns=turns)).tolist()
    [0.5, 0.5, 1.0]
    """
    tables = dict[int, list[list[float]]]()
    for group in {sample.group for sample in batch.samples}:
        rewards = batch.rewards.get(group, ())
        check_rewards(group, rewards)
        turns = batch.turns.get(group, [()] * len(rewards))
        if len(turns) != len(rewards):
            raise ValueError(
                f"group {group} has {len(rewards)} rewards, but turns came of {len(turns)} members"
            )
        if not all(math.isfinite(reward) for member in turns for reward in member):
            raise ValueError(f"group {group} has a turn whose reward is not finite")
        tables[group] = turn_advantages(advantage, rewards, turns)
    values, counts = list[float](), list[int]()
    for sample in batch.samples:
        own = tables[sample.group][advantage.member_index(sample, batch.rewards[sample.group])]
        tiled = sample.turns or [(0, sample.sampled_tokens)]
        if sum(tokens for _, tokens in tiled) != sample.sampled_tokens or any(
            tokens < 0 or not 0 <= turn < len(own) for turn, tokens in tiled
        ):
            raise ValueError(
                f"the turns of rollout {sample.rollout} in strand {sample.strand} do not match its "
                f"{sample.sampled_tokens} sampled tokens, or its {len(own)} turns"
            )
        values += (own[turn] for turn, _ in tiled)
        counts += (tokens for _, tokens in tiled)
    return torch.tensor(values, dtype=torch.float32).repeat_interleave(torch.tensor(counts).long())
