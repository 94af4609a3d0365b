"""Broadcasts among processes of one machine by memory that they share. Invariant: a slot is written
again only when everybody has read it, and a peer that dies or hangs shows as it does over gloo.

The bytes go through a ring of slots; gloo carries, for each broadcast, the number of what is in a
slot, and back from each engine that it was read. So bytes are copied twice in all, once by the
trainer and once by each engine, where loopback has the system copy them four times.

The memory has no name in any folder, and is gone with the last process that holds it. The trainer's
peers open it by the trainer's entry in /proc, which the system allows to the same user alone. Who
cannot (another user, or namespace) says so, and the group goes by gloo.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections import deque
from datetime import timedelta
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import Work

from asyncrl.weightsync.bucket_pieces import MOST
from asyncrl.weightsync.process_group import Collective, PairGroup, Posted

SLOTS = 4
TOGETHER = 2
"""Slots that an engine has read when it says so: each message wakes several threads."""
_TOKEN = 16
AMPLE = timedelta(minutes=5)


class GlooGroup(Collective, PairGroup, Protocol):
    """gloo's group."""


class Ring:
    """Slots of memory, of `MOST` bytes each, that processes share; `place` says where it is."""

    def __init__(self, memory: mmap.mmap, place: str) -> None:
        self.place = place
        flat = np.frombuffer(memory, np.uint8)
        self.slots: list[NDArray[np.uint8]] = [
            flat[at * MOST : (at + 1) * MOST] for at in range(SLOTS)
        ]

    @staticmethod
    def offer() -> Held | None:
        """New memory; None where the system gives none."""
        token, size = secrets.token_bytes(_TOKEN), SLOTS * MOST + _TOKEN
        try:
            descriptor = os.memfd_create("asyncrl-weights")
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        except OSError:
            return None
        memory[SLOTS * MOST :] = token
        return Held(memory, descriptor, f"{os.getpid()} {descriptor} {token.hex()}")

    @staticmethod
    def at(place: str) -> Ring | None:
        """The memory that another process offered; None where this one may not open it."""
        pid, number, token = place.split()
        try:
            descriptor = os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_RDWR)
        except OSError:
            return None
        try:
            memory = mmap.mmap(descriptor, SLOTS * MOST + _TOKEN)
        except (OSError, ValueError):  # something else, of another size
            return None
        finally:
            os.close(descriptor)
        if memory[SLOTS * MOST :].hex() != token:
            return None
        return Ring(memory, place)


class Held(Ring):
    """Memory of this process, which others may open until `close`."""

    def __init__(self, memory: mmap.mmap, descriptor: int, place: str) -> None:
        super().__init__(memory, place)
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Have nobody else open it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class MemoryGroup:
    """A group of `world` processes that broadcast by a ring, from rank 0. Every broadcast is of at
    most `MOST` bytes of host memory; each is waited for in its turn."""

    def __init__(self, group: GlooGroup, ring: Ring, rank: int, world: int) -> None:
        self._group, self._ring = group, ring
        self._rank, self._world = rank, world
        self._count = 0
        self._read: deque[list[_Word]] = deque()
        self._told: deque[_Word] = deque()

    def broadcast(self, tensor: Tensor, root: int, timeout: timedelta) -> Posted:
        """Post a broadcast of a uint8 tensor."""
        if self._rank != root:
            return Copied(self.coming(tensor.numel(), timeout), tensor)
        if len(self._read) == SLOTS // TOGETHER:
            for word in self._read.popleft():
                word.work.wait(timeout)
        number, self._count = self._count, self._count + 1
        np.copyto(self._ring.slots[number % SLOTS][: tensor.numel()], tensor.numpy())
        if _is_told(number):  # before it: an engine may end as soon as it has the last one
            others = (rank for rank in range(self._world) if rank != root)
            words = [(rank, torch.empty(1)) for rank in others]
            self._read.append([_Word(self._group.recv([at], rank, 0), at) for rank, at in words])
        return self._group.broadcast(torch.tensor([number]), root, timeout)

    def coming(self, size: int, timeout: timedelta) -> Coming:
        """Post the next broadcast to this process, of so many bytes."""
        number, self._count = self._count, self._count + 1
        head = torch.full((1,), -1)
        work = self._group.broadcast(head, 0, timeout)
        slot = torch.from_numpy(self._ring.slots[number % SLOTS][:size])
        return Coming(self, work, head, number, slot)

    def tell(self, number: int, timeout: timedelta) -> None:
        """Say that a slot was read, and those before it."""
        if _is_told(number):
            word = torch.zeros(1)
            self._told.append(_Word(self._group.send([word], 0, 0), word))
            if len(self._told) > SLOTS:
                self._told.popleft().work.wait(timeout)

    def abort(self) -> None:
        self._group.abort()


class _Word(NamedTuple):
    """A message on its way, and its memory, which gloo does not hold."""

    work: Work
    memory: Tensor


def _is_told(number: int) -> bool:
    """True if an engine says that it has read broadcast `number`, and those before it."""
    return number % TOGETHER == TOGETHER - 1


class Coming:
    """A broadcast that comes to this process. Its bytes are in `slot` between `wait` and `read`."""

    def __init__(
        self, group: MemoryGroup, work: Posted, head: Tensor, number: int, slot: Tensor
    ) -> None:
        self._group, self._work, self._head, self._number = group, work, head, number
        self.slot = slot

    def wait(self, timeout: timedelta = AMPLE) -> object:
        """Wait until they are there. Raises RuntimeError."""
        self._work.wait(timeout)
        if int(self._head) != self._number:
            raise RuntimeError(f"broadcast {int(self._head)} came in place of {self._number}")
        return True

    def read(self, timeout: timedelta) -> None:
        """Say that they are not needed any more."""
        self._group.tell(self._number, timeout)


class Copied(NamedTuple):
    """The same, into a tensor."""

    coming: Coming
    tensor: Tensor

    def wait(self, timeout: timedelta = AMPLE) -> object:
        self.coming.wait(timeout)
        np.copyto(self.tensor.numpy(), self.coming.slot.numpy())
        self.coming.read(timeout)
        return True
