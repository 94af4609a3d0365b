"""A micro-batch as tensors. Invariant: whatever is known of a response token has the same place in
every tensor.

Nothing here is done token by token in Python: samples and spans are, and numpy spreads them over
their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.ipc.messages import MicroBatch, Sample
from asyncrl.training.packing import PackedBatch, pack


class Batch(NamedTuple):
    """The bundles, and for each response token its behaviour log-probability (float32), whether it
    may enter the loss (bool), the place of its sample in the batch (int64), and the version that
    sampled it and its lag (int64 >= 0)."""

    bundles: list[PackedBatch]
    behaviour: Tensor
    mask: Tensor
    sample_index: Tensor
    version: Tensor
    lag: Tensor


def read(batch: MicroBatch, buffers: Sequence[memoryview | bytes], *, shared: bool) -> Batch:
    """The tensors of a micro-batch with at least one sample, whose equal prompts are `shared` or
    not (`pack`). Raises ValueError where the buffers or the spans do not fit it, or a token is
    newer than the policy that the step starts from."""
    if len(buffers) != 3:
        raise ValueError(f"a micro-batch comes with 3 buffers, not {len(buffers)}")
    ids, behaviour, mask = (
        np.frombuffer(b, dtype) for b, dtype in zip(buffers, ("<i4", "<f4", "u1"), strict=True)
    )
    responses = [s.response_tokens for s in batch.samples]
    if not len(behaviour) == len(mask) == sum(responses):
        raise ValueError(
            f"samples of {sum(responses)} response tokens came with {len(behaviour)} "
            f"log-probabilities and {len(mask)} of mask"
        )
    version = torch.from_numpy(versions(batch.samples))
    lag = batch.step - version
    if len(lag) and int(lag.min()) < 0:
        raise ValueError(
            f"a token of version {int(version.max())} is newer than the policy that step "
            f"{batch.step} starts from"
        )
    return Batch(
        texts(batch.samples, ids, shared=shared),
        torch.from_numpy(behaviour.copy()),
        torch.from_numpy(mask.copy()) != 0,
        torch.repeat_interleave(torch.tensor(responses)),
        version,
        lag,
    )


def texts(samples: Sequence[Sample], ids: NDArray[np.int32], *, shared: bool) -> list[PackedBatch]:
    """Prompts and responses laid out for forward passes as `pack` does. Raises ValueError where
    they are not of the samples."""
    return pack(
        ids, [s.prompt_tokens for s in samples], [s.response_tokens for s in samples], shared=shared
    )


def versions(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """The version of each response token, from the spans. Raises ValueError where they do not tile
    a response."""
    for sample in samples:
        end = 0
        for span in sample.spans:
            if span.start != end or span.end < span.start:
                break
            end = span.end
        if end != sample.response_tokens:
            raise ValueError(
                f"the spans of rollout {sample.rollout} do not tile its {sample.response_tokens} "
                "response tokens"
            )
    spans = [(span.version, span.end - span.start) for sample in samples for span in sample.spans]
    of, tokens = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return np.repeat(of, tokens)
