"""Copies of a trainer's state in host memory. Invariant: a copy does not change, whatever is
trained, until the next copy begins.

A checkpoint is written from a copy, beside training, so training waits only for the copying. Its
memory is reused for the next copy: the kernel would provide new memory page by page, which takes
longer than the copying itself.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.model_layout import ModelLayout

Kind = tuple[torch.dtype, torch.Size]


class Staging:
    """Buffers in host memory, by type and shape: names of tensors differ from one copy to the next.
    From a GPU they are pinned, so that a copy runs at the bus's speed."""

    def __init__(self) -> None:
        self._free = defaultdict[Kind, list[Tensor]](list)
        self._taken = list[Tensor]()
        self._layout: ModelLayout | None = None

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

    def layout(
        self, model: PreTrainedModel, dtype: torch.dtype, writers: int, most: int
    ) -> ModelLayout:
        """The files of the model, the same for all copies. It is made at the first copy only, as
        that changes settings of the process and takes as long as a copy."""
        if self._layout is None:
            self._layout = ModelLayout(model, dtype, writers, most)
        return self._layout

    def end(self) -> None:
        """Wait until all copies are complete."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()


def _buffer(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
