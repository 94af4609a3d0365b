"""The seconds that a rank waits for others in collectives. They say which rank comes last: a
collective ends when all have come, so the one that waits least is waited for.

Over gloo a call of a collective returns when it is over. Over NCCL it returns at once, so there
only the number of collectives says something: a rank that hangs has begun fewer than the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)

from asyncrl.messages import RankStand

_TIMES = "asyncrl_times"
"""Attribute of a mesh: the times of this process's rank in it."""


class CollectiveTimes:
    """Times of one rank. The thread that computes changes them, and any may read them."""

    def __init__(self) -> None:
        self._entered = 0
        self._waited_s = self._work = 0.0
        self._inside = False
        self.broken = False
        """True if a collective has raised, as where another rank has left it."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as a collective."""
        began = time.monotonic()
        self._entered += 1
        self._inside = True
        try:
            yield
        except RuntimeError:
            self.broken = True
            raise
        finally:
            self._inside = False
            self._waited_s += time.monotonic() - began

    def given(self, cost: float) -> None:
        """Count work that this rank was given, in the units of `packing.cost`."""
        self._work += cost

    @property
    def stand(self) -> RankStand:
        """The progress of the rank."""
        return RankStand(self._entered, self._inside, self._waited_s, self._work)


def times_of(mesh: DeviceMesh) -> CollectiveTimes:
    """The times of this process's rank in a mesh."""
    found: CollectiveTimes | None = getattr(mesh, _TIMES, None)
    if found is None:
        found = CollectiveTimes()
        setattr(mesh, _TIMES, found)
    return found


def count_collectives(module: FSDPModule, mesh: DeviceMesh) -> None:
    """Count the collectives of a module that is divided over a mesh. What copies of the model add
    up among each other is preceded by a collective of one number, because torch has no place to
    count it; with one rank for each copy nothing is counted."""
    times = times_of(mesh)
    copies = mesh.get_group(0) if mesh.ndim > 1 and mesh.device_type == "cpu" else None
    module.set_custom_all_gather(_Gathers(times))
    module.set_custom_reduce_scatter(_Scatters(times, copies))


class _Gathers(DefaultAllGather):
    def __init__(self, times: CollectiveTimes) -> None:
        self._times = times

    def __call__(self, *args: Any, **kwargs: Any) -> dist.Work | None:
        with self._times.waiting():
            return super().__call__(*args, **kwargs)


class _Scatters(DefaultReduceScatter):
    def __init__(self, times: CollectiveTimes, copies: dist.ProcessGroup | None) -> None:
        self._times, self._copies = times, copies

    def __call__(self, *args: Any, **kwargs: Any) -> dist.Work:
        with self._times.waiting():
            found = super().__call__(*args, **kwargs)
            if self._copies is not None:
                dist.all_reduce(torch.zeros(1), group=self._copies)
        return found
