"""placeholder: being written"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import torch
from transformers import PreTrainedModel

from asyncrl.engines.protocol import Chunk, Request


class Batcher:
    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int,
        context_tokens: int,
        stop_ids: frozenset[int],
        run_seed: int,
        kv: Literal["keep", "recompute"],
        compile: bool,
    ) -> None:
        raise NotImplementedError

    version: int | None
    vocab_size: int
    has_work: bool

    def submit(self, requests: Sequence[Request]) -> None: ...
    def interrupt(self, rollouts: Sequence[int]) -> None: ...
    def refuse_weights(self, weights: Mapping[str, torch.Tensor]) -> None: ...
    def paused(self) -> AbstractContextManager[None]: ...
    def load(self, version: int, weights: Mapping[str, torch.Tensor], *, pin: bool) -> None: ...
    def unpin(self, version: int) -> None: ...
    def advance(self, steps: int) -> list[Chunk]: ...
