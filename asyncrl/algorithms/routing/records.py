"""Records of which experts tokens got, as bytes. Invariant: what an engine recorded is what the
trainer of the same model reads.

A token's record has the experts of each router of the model, in the order of its layers and of the
router's choice: one byte each, or two (little-endian) of a model with more than 256 experts. It is
of the pass that predicted the token, at the position before it. All bytes of a token whose experts
are unknown are 255, which no record has: the experts of a token differ.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.algorithms.routing.routers import Pass, routers

ONE_BYTE = 256
"""The most experts that a byte has a number for."""


def experts_of(model: nn.Module) -> int:
    """The experts of a router of a watched model."""
    (matrix,) = [p for p in routers(model)[0].parameters() if p.dim() == 2 and min(p.shape) > 1]
    return int(matrix.shape[0])


def encoded(passed: Pass, experts: int) -> Tensor:
    """The records of a pass's tokens, uint8 [tokens, bytes]; without a branch on any number of
    tokens, so that it can be traced. Raises ValueError where a router does not choose by its
    largest scores."""
    if not passed.choices:
        raise ValueError("no router of the model chooses experts by their scores")
    chosen = torch.cat([passed.choices[layer].experts for layer in sorted(passed.choices)], 1)
    if experts <= ONE_BYTE:
        return chosen.to(torch.uint8)
    return torch.stack([chosen & 255, chosen >> 8], -1).to(torch.uint8).flatten(1)


def decoded(
    records: bytes | memoryview | NDArray[np.uint8], tokens: int, model: nn.Module
) -> Tensor:
    """The experts of each token, int16 [tokens, routers, experts of a token], -1 where unknown.
    Raises ValueError where they cannot be those of this model."""
    flat = np.frombuffer(records, np.uint8)
    layers, size = len(routers(model)), 1 if experts_of(model) <= ONE_BYTE else 2
    if not tokens or len(flat) % (tokens * layers * size):
        raise ValueError(
            f"{len(flat)} bytes of routing are not those of {tokens} tokens in the {layers} "
            "layers with experts of this model"
        )
    rows = flat.reshape(tokens, -1)
    unknown = (rows == 255).all(1)
    numbers = rows.astype(np.int16) if size == 1 else rows.copy().view("<i2")
    return torch.from_numpy(
        np.where(unknown[:, None], np.int16(-1), numbers).reshape(tokens, layers, -1)
    )
