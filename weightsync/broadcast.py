"""Buckets of weights, broadcast from the trainer to the engines. Invariant: at any time one thread
of a process works for the process group in use; whatever a failed or cancelled transfer may still
touch (group, buffers, staging memory) is never used again.

A group lives for one epoch and many publications: rank 0 is the trainer, which hosts the store
where the others find it. Collectives run in a worker thread, so links and decoding continue
meanwhile. A cancelled transfer leaves its thread behind, which ends when the call it is in does: at
the latest at the transfer's deadline, sooner when a peer closes. A new epoch does not wait for it,
unless two are left behind already.

A `TransferError` is not caused by this process (a peer died, was late, or refused), and another
epoch may succeed. Any other error, such as `PlanMismatch`, is this process's own, and would recur.

On one machine the store is a file that the run's user alone may open (`stores`). Between machines
it is, like gloo's connections, plain TCP without a key, as torch.distributed has them: `host` must
be on a network that is trusted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import torch
import trio
from torch import Tensor

from asyncrl.weightsync.broadcast_group import EpochGroup, Rendezvous
from asyncrl.weightsync.buckets import Plan, PlanMismatch
from asyncrl.weightsync.direct_weights import DirectWeights
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.process_group import Job, Worker
from asyncrl.weightsync.stores import served_store
from asyncrl.weightsync.transport import Received, Sent

T = TypeVar("T")


class GroupSender:
    """The trainer's side. Use `async with GroupSender.open(host, path) as sender`."""

    def __init__(self, store: str, device: torch.device, full_every: int) -> None:
        self.store = store
        """The address at which engines find the store."""
        self._groups = _EpochGroups(device, full_every)

    @staticmethod
    @asynccontextmanager
    async def open(
        host: str, path: Path, device: torch.device | str = "cpu", full_every: int = 1
    ) -> AsyncIterator[GroupSender]:
        """Keep the store for engines of this machine (`host` is loopback) in the file `path`, or
        for those of several at this one's address `host`, at a port the system chooses. Of
        `full_every` transfers one has all bytes, the others what changed; every process has to have
        the same. Raises TransferError when that is not possible."""
        with served_store(host, path) as store:
            sender = GroupSender(store, torch.device(device), full_every)
            try:
                yield sender
            finally:
                await sender._groups.close()

    async def join(self, epoch: int, world: int, plan: Plan, deadline_s: float) -> None:
        """Meet the engines of the epoch and compare plans, within `deadline_s` seconds, without
        sending. Errors as in `send`."""
        rendezvous = Rendezvous(epoch, 0, world, self.store)
        await self._groups.run(rendezvous, plan, deadline_s, _nothing)

    async def send(
        self,
        epoch: int,
        world: int,
        plan: Plan,
        tensors: Iterable[tuple[str, Tensor]],
        deadline_s: float,
        average: Iterable[tuple[str, Tensor]] | None = None,
    ) -> Sent:
        """Broadcast the tensors to the `world - 1` engines of the epoch, all within `deadline_s`
        seconds; then, of the same plan, their `average`, whose checksums are the last ones.

        `tensors` come in the plan's order and are consumed in a worker thread, one at a time; they
        must not change meanwhile. The first transfer of an epoch waits for all its engines to join.
        Raises TransferError when an engine dies, is late or refuses the plan, and when the epoch is
        over; PlanMismatch when the tensors are not the plan's.
        """

        def transfer(group: EpochGroup, job: Job) -> Sent:
            sent = group.send(job, tensors)
            if average is None:
                return sent
            checksums, sent_bytes, _ = group.send(job, average)
            return Sent(sent.checksums + checksums, sent.sent_bytes + sent_bytes, [])

        rendezvous = Rendezvous(epoch, 0, world, self.store)
        return await self._groups.run(rendezvous, plan, deadline_s, transfer)


class GroupReceiver:
    """An engine's side. Use `async with GroupReceiver.open() as receiver`.

    It holds one staging set (and a second while a cancelled transfer still writes to it).
    """

    def __init__(self, device: torch.device, full_every: int) -> None:
        self._device = device
        self._groups = _EpochGroups(device, full_every)
        self._staging: Tensor | None = None

    @staticmethod
    @asynccontextmanager
    async def open(
        device: torch.device | str = "cpu", full_every: int = 1
    ) -> AsyncIterator[GroupReceiver]:
        receiver = GroupReceiver(torch.device(device), full_every)
        try:
            yield receiver
        finally:
            await receiver._groups.close()

    async def receive(
        self,
        store: str,
        epoch: int,
        rank: int,
        world: int,
        plan: Plan,
        deadline_s: float,
        *,
        average: bool = False,
    ) -> Received:
        """Join the epoch if need be, and receive one publication into staging memory, all within
        `deadline_s` seconds; with `average`, the average that follows it too, into memory of its
        own that nothing reuses. The next reception overwrites the weights.

        `plan` is that of this engine's own model. Raises PlanMismatch, naming the first difference,
        when the trainer's is another; TransferError when the trainer or another engine dies, is
        late or refuses, and when the epoch is over.
        """
        flat, self._staging = self._staging, None
        if flat is None or flat.numel() != plan.total_bytes:
            flat = self._memory(plan)
        target, second = flat, self._memory(plan) if average else None

        def transfer(group: EpochGroup, job: Job) -> Received:
            received = group.receive(job, target)
            if second is None:
                return received
            average = group.receive(job, second)
            return Received(
                received.checksums + average.checksums, received.weights, average.weights
            )

        rendezvous = Rendezvous(epoch, rank, world, store)
        received = await self._groups.run(rendezvous, plan, deadline_s, transfer)
        self._staging = flat
        return received

    async def join(
        self, store: str, epoch: int, rank: int, world: int, plan: Plan, deadline_s: float
    ) -> None:
        """Meet the trainer and the other engines of the epoch and compare plans, without receiving.
        Arguments and errors as in `receive`."""
        rendezvous = Rendezvous(epoch, rank, world, store)
        await self._groups.run(rendezvous, plan, deadline_s, _nothing)

    async def receive_direct(
        self,
        store: str,
        epoch: int,
        rank: int,
        world: int,
        weights: DirectWeights,
        deadline_s: float,
    ) -> list[int]:
        """Receive one publication into the own weights of a paused engine. Returns the checksums of
        the weights afterwards, one a bucket. Errors as in `receive`; the weights are torn then."""
        rendezvous = Rendezvous(epoch, rank, world, store)
        return await self._groups.run(
            rendezvous,
            weights.plan,
            deadline_s,
            lambda group, job: group.receive_direct(job, weights),
        )

    def _memory(self, plan: Plan) -> Tensor:
        return torch.empty(plan.total_bytes, dtype=torch.uint8, device=self._device)


def _nothing(group: EpochGroup, job: Job) -> None:
    """Joining is all."""


class _EpochGroups:
    """Runs one transfer at a time in a worker thread, and owns the group of the current epoch
    between transfers."""

    def __init__(self, device: torch.device, full_every: int) -> None:
        self._device = device
        self._full_every = full_every
        self._worker = Worker()
        self._epoch = -1
        self._group: EpochGroup | None = None

    async def run(
        self,
        rendezvous: Rendezvous,
        plan: Plan,
        deadline_s: float,
        transfer: Callable[[EpochGroup, Job], T],
    ) -> T:
        async with self._worker.turn(deadline_s) as job:
            old, group = self._take(rendezvous, plan)

            def work() -> T:
                if old is not None:
                    old.close()
                group.join(job)
                return transfer(group, job)

            result = await self._worker.run(work, group.close)
            self._group = group
            return result

    def _take(self, rendezvous: Rendezvous, plan: Plan) -> tuple[EpochGroup | None, EpochGroup]:
        """The group to close and the group to use. Only success puts one back, so that a broken one
        is never reused."""
        group, self._group = self._group, None
        if group is None or group.rendezvous.epoch != rendezvous.epoch:
            if rendezvous.epoch <= self._epoch:
                raise TransferError(f"epoch {rendezvous.epoch} is over: publish in a new one")
            self._epoch = rendezvous.epoch
            return group, EpochGroup(rendezvous, plan, self._device, self._full_every)
        if group.rendezvous != rendezvous:
            raise ValueError(
                f"epoch {rendezvous.epoch} was joined as {group.rendezvous}: it cannot be "
                f"joined as {rendezvous} too"
            )
        if difference := group.plan.difference(plan, "this epoch's earlier plan", "this one"):
            raise PlanMismatch(difference)
        return None, group

    async def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            # no transfer is under way in it, so this takes no time
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(group.close)
