"""Ranks that compute packed batches together, as a group of processes. Satisfies
`asyncrl.training.context_ranks.ContextRanks`."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from asyncrl.training.context_ranks import ContextPart
from asyncrl.training.ranks.collective_times import CollectiveTimes


class ContextGroup(ContextPart):
    """This process's rank of a `group`. Its collectives are counted in `times`."""

    def __init__(self, group: dist.ProcessGroup, times: CollectiveTimes) -> None:
        super().__init__(group.rank(), group.size())
        self._group, self._times = group, times

    def gathered(self, own: Tensor) -> Tensor:
        """The rows of all ranks, one rank's after another's."""
        found = own.new_empty(self.size * len(own), *own.shape[1:])
        with self._times.waiting():
            dist.all_gather_single(found, own, group=self._group)
        return found

    def scattered(self, rows: Tensor) -> Tensor:
        """The sum of the ranks' tensors, of which each has its own rows."""
        found = rows.new_empty(len(rows) // self.size, *rows.shape[1:])
        with self._times.waiting():
            dist.reduce_scatter_single(found, rows, group=self._group)
        return found

    def added(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors, which takes its place."""
        with self._times.waiting():
            dist.all_reduce(tensor, group=self._group)
        return tensor
