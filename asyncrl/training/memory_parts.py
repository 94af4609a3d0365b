"""The memory of a trainer in its parts. No torch here: `asyncrl check` reads what another process
predicted."""

from __future__ import annotations

import msgspec

from asyncrl.config import Config


class MemoryParts(msgspec.Struct, frozen=True):
    """Bytes that a trainer has: `weights` as the model computes with them, `masters` in float32,
    `gradients`, the optimizer's moments, and `policies`, the weights of those beside the one that
    learns. Of a pass, when it has the most: `logits`, whatever has a number for each id of the
    vocabulary, and `activations`, all else, kept for the backward pass or computed in it. `step`:
    what the optimizer computes beside its moments."""

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
        """Those that are there all the time."""
        return self.weights + self.masters + self.gradients + self.optimizer + self.policies

    @property
    def total(self) -> int:
        """The most of it, in a pass or in a step."""
        return self.state + max(self.activations + self.logits, self.step)


def longest_samples(config: Config) -> tuple[int, int]:
    """The number of samples of a micro-batch of the longest ones, and the tokens of each.

    >>> from asyncrl.config import load
    >>> longest_samples(load(None, ["train.micro_tokens=1024", "engine.context_tokens=256"], {}))
    (4, 256)
    """
    longest = config.engine.context_tokens
    samples = max(1, config.train.micro_tokens // longest)
    return min(samples, config.train.batch_groups * config.rollout.group_size), longest


class PredictedMemory(msgspec.Struct, frozen=True):
    """Bytes of a trainer, and, where they are too many, other settings in words that would fit with
    the bytes that they need; empty where none is known."""

    parts: MemoryParts
    fitting: str = ""
    fitting_bytes: int = 0
