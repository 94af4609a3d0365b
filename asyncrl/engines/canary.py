"""The canary: a short text that an engine and the trainer must give the same log-probabilities.
Invariant: weights that compute something else than the trainer's are named, even when every other
check passes.

The text is always the same for one vocabulary. The trainer computes the reference once for each
version, by transformers, and it comes with the commit. A server's prefill is compared after it is
resumed, before tokens that it decoded in between may leave the actor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

TOKENS = 32
_SEED = 20_240_817

TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2, "fp8": 0.5}
"""The largest log-probability difference, in nats, that rounding explains, by dtype. float32 on one
kind of machine differs by 1e-6. With fp8 a server rounds activations to four bits, too; that bound
is an estimate, which no server has tried."""


class CanaryDied(Exception):
    """Raised when a server's output does not match the weights that it loaded; one sentence."""


def text(vocab_size: int, special: Collection[int], *, tokens: int = TOKENS) -> NDArray[np.int32]:
    """`tokens` ids (at least 2), int32, of a vocabulary of `vocab_size`, none of them `special`
    (stop ids and the like), nor the last one, which SGLang 0.5.23 calls 0 when it gives its
    log-probability.

    Raises ValueError where fewer than two ids are left to choose from.
    """
    ordinary = np.setdiff1d(
        np.arange(vocab_size - 1, dtype=np.int32), np.fromiter(special, np.int32)
    )
    if len(ordinary) < 2:
        raise ValueError(
            f"a vocabulary of {vocab_size} with {len(special)} special ids is too small for a "
            "canary text"
        )
    return np.random.default_rng(_SEED).choice(ordinary, tokens).astype(np.int32)


def reference(
    model: torch.nn.Module, weights: Mapping[str, torch.Tensor], ids: NDArray[np.int32]
) -> list[float]:
    """The log-probability of each id but the first, given those before it, by the `transformers`
    causal model with `weights` by parameter name (tied ones once) in place of its own (neither read
    nor changed), on the device of the weights. Returns `len(ids) - 1` numbers. Call it in a worker
    thread."""
    import torch

    device = next(iter(weights.values())).device
    batch = torch.from_numpy(ids).to(device, torch.int64)[None]
    buffers = {name: buffer.to(device) for name, buffer in model.named_buffers()}
    with torch.no_grad():
        logits = torch.func.functional_call(
            model, {**buffers, **weights}, (), {"input_ids": batch, "use_cache": False}
        ).logits
        return _scores(logits, batch)


def scored(model: torch.nn.Module, ids: NDArray[np.int32], device: torch.device) -> list[float]:
    """The log-probabilities of `reference` by a model with its own weights, on their device."""
    import torch

    batch = torch.from_numpy(ids).to(device, torch.int64)[None]
    with torch.no_grad():
        return _scores(model(input_ids=batch, use_cache=False).logits, batch)


def _scores(logits: torch.Tensor, batch: torch.Tensor) -> list[float]:
    import torch

    scores = torch.log_softmax(logits[0, :-1].float(), -1).gather(1, batch[0, 1:, None])[:, 0]
    return [float(score) for score in scores]


def compare(
    version: int, expected: Sequence[float], measured: Sequence[float], tolerance: float
) -> float:
    """The largest absolute difference, in nats. Raises CanaryDied where it is above `tolerance`, or
    where a number is missing or NaN."""
    if len(expected) != len(measured):
        raise CanaryDied(
            f"version {version}: {len(measured)} log-probabilities came for the canary's "
            f"{len(expected)}"
        )
    differences = np.abs(np.asarray(expected, np.float64) - np.asarray(measured, np.float64))
    worst = int(np.argmax(np.where(np.isnan(differences), np.inf, differences)))
    largest = float(differences[worst])
    if not largest <= tolerance:
        raise CanaryDied(
            f"version {version}: the server's log-probabilities differ by {largest:.3g} from "
            "those of the weights it was given"
            f" (token {worst + 1} of the canary: {measured[worst]:.6g} for {expected[worst]:.6g}; "
            f"{tolerance:g} is rounding)"
        )
    return largest
