"""The memory of a trainer in its parts. Without torch, since `asyncrl check` reads the prediction
of another process."""

from __future__ import annotations

import msgspec

from asyncrl.config import Config
from asyncrl.config.flow import max_members
from asyncrl.config.micro_tokens import micro_tokens


class MemoryParts(msgspec.Struct, frozen=True):
    """Bytes of a trainer: `weights` as the model computes with them, `masters` in float32,
    `gradients`, the optimizer's moments, and `policies`, the weights of those beside the one that
    learns. Of a pass, at its peak: `logits`, all tensors with a number for each id of the
    vocabulary, and `activations`, all others, kept for the backward pass or computed in it. `step`:
    temporary tensors of the optimizer."""

    weights: int
    masters: int
    gradients: int
    optimizer: int
    policies: int
    activations: int
    logits: int
    step: int

    @property
    def state(self) -> int:
        """The bytes that are always in use."""
        return self.weights + self.masters + self.gradients + self.optimizer + self.policies

    @property
    def total(self) -> int:
        """The peak, in a pass or in a step."""
        return self.state + max(self.activations + self.logits, self.step)


def longest_samples(config: Config) -> tuple[int, int]:
    """The number of samples of a micro-batch of the longest ones, and the tokens of each.

    >>> from asyncrl.config import load
    >>> longest_samples(load(None, ["train.micro_tokens=1024", "engine.context_tokens=256"], {}))
    (4, 256)
    >>> few = ["train.batch_groups=1", "rollout.group_size=2", "foreign.source=pool"]
    >>> longest_samples(load(None, few, {}))  # a foreign answer beside two of its own
    (3, 256)
    """
    longest = config.engine.context_tokens
    samples = max(1, micro_tokens(config) // longest)
    if config.train.step_tokens:  # a step has as many groups as it needs
        return samples, longest
    return min(samples, config.train.batch_groups * max_members(config)), longest


class PredictedMemory(msgspec.Struct, frozen=True):
    """Bytes of a trainer, and, where they are too many, other settings in words that would fit,
    with their bytes; empty where none is known."""

    parts: MemoryParts
    fitting: str = ""
    fitting_bytes: int = 0
