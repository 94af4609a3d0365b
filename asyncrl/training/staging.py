"""Copies of a trainer's state in host memory. Invariant: a copy does not change, whatever is
trained, until the next copy begins.

A checkpoint is written from a copy, beside training, so training waits only for the copying. Its
memory is reused for the next copy: the kernel would provide new memory page by page, which takes
longer than the copying itself.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.models import model_with

Kind = tuple[torch.dtype, torch.Size]


class Staging:
    """Buffers in host memory, by type and shape: names of tensors differ from one copy to the next.
    From a GPU they are pinned, so that a copy runs at the bus's speed."""

    def __init__(self) -> None:
        self._free = defaultdict[Kind, list[Tensor]](list)
        self._taken = list[Tensor]()
        self._weights = dict[str, Tensor]()
        self._model: PreTrainedModel | None = None

    def begin(self) -> None:
        """Begin a copy, which may overwrite the last one. Buffers that the last one did not use are
        freed."""
        self._free.clear()
        for buffer in self._taken:
            self._free[buffer.dtype, buffer.shape].append(buffer)
        self._taken.clear()

    @torch.no_grad()
    def copied(self, tensor: Tensor) -> Tensor:
        """A contiguous copy of a tensor. It is complete at `end`."""
        free = self._free[tensor.dtype, tensor.shape]
        buffer = free.pop() if free else _buffer(tensor)
        self._taken.append(buffer)
        return buffer.copy_(tensor, non_blocking=True)

    @torch.no_grad()
    def model(
        self, weights: Iterable[tuple[str, Tensor]], like: PreTrainedModel, dtype: torch.dtype
    ) -> PreTrainedModel:
        """A model of `dtype` with copies of these `weights`, complete at `end`, and all else as
        `like`, for writing, not for computing. It is created at the first copy only, as that
        changes settings of the process and takes as long as a copy."""
        for name, weight in weights:
            if name not in self._weights:
                self._weights[name] = _buffer(weight)
            self._weights[name].copy_(weight, non_blocking=True)
        if self._model is None:
            stored = like.state_dict().keys()
            buffers = {
                name: buffer.detach().to("cpu", copy=True)
                for name, buffer in like.named_buffers()
                if name in stored
            }
            self._model = model_with(self._weights | buffers, like.config, dtype)
            if like.can_generate():
                self._model.generation_config = copy.deepcopy(like.generation_config)
        return self._model

    def end(self) -> None:
        """Wait until all copies are complete."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()


def _buffer(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
