"""The wire: buckets broadcast from the trainer to the engines. Invariant: at any time one thread of
a process works for the process group in use; whatever a failed or cancelled transfer may still
touch (group, buffers, staging memory) is never used again.

A group lives for one epoch and many publications: rank 0 is the trainer, which hosts the store
where the others find it. Groups are gloo on the CPU and NCCL on CUDA devices (the latter unproven:
written for, never run). Collectives run in a worker thread, so links and decoding go on meanwhile.
A cancelled transfer leaves its thread behind, which ends when the call it is in does: at the latest
at the transfer's deadline, sooner when a peer closes. A new epoch does not wait for it, unless two
are left behind already.

What a failure is: `TransferError` is nobody's fault here (a peer died, was late, or refused), and
another epoch may well succeed. Anything else, such as `PlanMismatch`, is this process's own, and
would come again.

The store and gloo's connections are plain TCP without a key, as torch.distributed has them: `host`
must be on a network that is trusted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import msgspec
import torch
import trio
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore, Work  # type: ignore[attr-defined]

from weightsync.buckets import Plan, PlanMismatch
from weightsync.checksum import checksum
from weightsync.errors import TransferError
from weightsync.group import Collective, Job, Worker, connect, own_address, serve

T = TypeVar("T")


class SendResult(msgspec.Struct, frozen=True):
    """What was sent: one checksum a bucket, and where the sending thread's seconds went.

    `assemble_seconds`: copying tensors into buckets, and gathering them where they are gathered
    lazily. `verify_seconds`: checksums. `wire_seconds`: waiting for broadcasts, beyond what the
    other two overlapped. On CUDA, where copies are asynchronous, the first is counted in the
    second. `seconds`: all three, and not the joining of the group.
    """

    checksums: list[int]
    assemble_seconds: float
    verify_seconds: float
    wire_seconds: float
    seconds: float


class Staged(msgspec.Struct, frozen=True):
    """What was received: `weights` by name are views of `flat`, and are overwritten by the
    receiver's next `receive` unless kept."""

    weights: dict[str, Tensor]
    checksums: list[int]
    wire_seconds: float
    verify_seconds: float
    flat: Tensor


class Sender:
    """The trainer's side. Use `async with Sender.open(host) as sender`."""

    def __init__(self, host: str, port: int, device: torch.device) -> None:
        self.port = port
        """Where the engines find the store."""
        self._host = host
        self._lane = _Transport(device)

    @staticmethod
    @asynccontextmanager
    async def open(host: str, device: torch.device | str = "cpu") -> AsyncIterator[Sender]:
        """Host the store on an address of this machine, at a port the system chooses. Raises
        TransferError when that is not possible."""
        store = await trio.to_thread.run_sync(
            serve, host
        )  # served for as long as this refers to it
        sender = Sender(host, int(store.port), torch.device(device))
        try:
            yield sender
        finally:
            await sender._lane.close()

    async def send(
        self,
        epoch: int,
        world: int,
        plan: Plan,
        tensors: Iterable[tuple[str, Tensor]],
        deadline_s: float,
    ) -> SendResult:
        """Broadcast the tensors to the `world - 1` engines of the epoch, all within `deadline_s`
        seconds.

        `tensors` come in the plan's order and are consumed in a worker thread, one at a time; they
        must not change meanwhile. The first transfer of an epoch waits for all its engines to join.
        Raises TransferError when an engine dies, is late or refuses the plan, and when the epoch is
        over; PlanMismatch when the tensors are not the plan's.
        """
        return await self._lane.run(
            _Membership(epoch, 0, world, self._host, self.port),
            plan,
            deadline_s,
            lambda group, job: group.send(job, tensors),
        )


class Receiver:
    """An engine's side. Use `async with Receiver.open() as receiver`.

    It holds two staging sets at most: one kept, one to receive into (and a third while a cancelled
    transfer still writes to it).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lane = _Transport(device)
        self._kept: Tensor | None = None
        self._spare: Tensor | None = None

    @staticmethod
    @asynccontextmanager
    async def open(device: torch.device | str = "cpu") -> AsyncIterator[Receiver]:
        receiver = Receiver(torch.device(device))
        try:
            yield receiver
        finally:
            await receiver._lane.close()

    async def receive(
        self, host: str, port: int, epoch: int, rank: int, world: int, plan: Plan, deadline_s: float
    ) -> Staged:
        """Join the epoch if need be, and receive one publication into staging memory, all within
        `deadline_s` seconds.

        `plan` is that of this engine's own model. Raises PlanMismatch, naming the first difference,
        when the trainer's is another; TransferError when the trainer or another engine dies, is
        late or refuses, and when the epoch is over.
        """
        flat, self._spare = self._spare, None
        if flat is None or flat.numel() != plan.total_bytes:
            flat = torch.empty(plan.total_bytes, dtype=torch.uint8, device=self._device)
        target = flat
        staged = await self._lane.run(
            _Membership(epoch, rank, world, host, port),
            plan,
            deadline_s,
            lambda group, job: group.receive(job, target),
        )
        self._spare = flat
        return staged

    def keep(self, staged: Staged) -> None:
        """These weights are in use from now on, and no `receive` writes to them until others are
        kept. Only the last ones staged can be."""
        if staged.flat is not self._spare:
            raise ValueError(
                "only the weights staged last can be kept: another receive has begun since"
            )
        self._kept, self._spare = staged.flat, self._kept


# ---------------------------------------------------------------------------------------- one lane


class _Membership(msgspec.Struct, frozen=True):
    """A process's place in a group, and where its trainer's store is."""

    epoch: int
    rank: int
    world: int
    host: str
    port: int


class _Transport:
    """Runs one transfer at a time in a worker thread, and owns the group of the current epoch
    between transfers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._worker = Worker()
        self._epoch = -1
        self._group: _Group | None = None

    async def run(
        self,
        engine_handle: _Membership,
        plan: Plan,
        deadline_s: float,
        transfer: Callable[[_Group, Job], T],
    ) -> T:
        async with self._worker.turn(deadline_s) as job:
            old, group = self._take(engine_handle, plan)

            def work() -> T:
                if old is not None:
                    old.close()
                group.join(job)
                return transfer(group, job)

            result = await self._worker.run(work, group.close)
            self._group = group
            return result

    def _take(self, engine_handle: _Membership, plan: Plan) -> tuple[_Group | None, _Group]:
        """The group to close and the group to use. Only success puts one back, so that a broken one
        has no way to be used again."""
        group, self._group = self._group, None
        if group is None or group.engine_handle.epoch != engine_handle.epoch:
            if engine_handle.epoch <= self._epoch:
                raise TransferError(f"epoch {engine_handle.epoch} is over: publish in a new one")
            self._epoch = engine_handle.epoch
            return group, _Group(engine_handle, plan, self._device)
        if group.engine_handle != engine_handle:
            raise ValueError(
                f"epoch {engine_handle.epoch} was joined as {group.engine_handle}: it cannot be "
                f"joined as {engine_handle} too"
            )
        if difference := group.plan.difference(plan, "this epoch's earlier plan", "this one"):
            raise PlanMismatch(difference)
        return None, group

    async def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            with trio.CancelScope(
                shield=True
            ):  # no transfer is under way in it, so this takes no time
                await trio.to_thread.run_sync(group.close)


# ----------------------------------------------------------------- one group, in the worker thread


class _Group:
    """The process group of one epoch and what it needs. Every method runs in a worker thread."""

    def __init__(self, engine_handle: _Membership, plan: Plan, device: torch.device) -> None:
        self.engine_handle = engine_handle
        self.plan = plan
        self._device = device
        self._group: Collective | None = None
        self._buffers: list[Tensor] = []

    def join(self, job: Job) -> None:
        """Agree on the plan with the others and connect to them; once."""
        if self._group is not None:
            return
        engine_handle = self.engine_handle
        with job.step(
            f"looking for the trainer's store at {engine_handle.host}:{engine_handle.port}"
        ) as left:
            store = PrefixStore(
                f"epoch/{engine_handle.epoch}",
                TCPStore(engine_handle.host, engine_handle.port, None, False, left),
            )
        if engine_handle.rank == 0:
            self._agree_with_engines(job, store)
        else:
            self._agree_with_trainer(job, store)
        with job.step("connecting to the other processes of the group") as left:
            address = own_address(engine_handle.host, engine_handle.port)
            self._group = connect(
                store,
                engine_handle.rank,
                engine_handle.world,
                address=address,
                device=self._device,
                timeout=left,
            )

    def send(self, job: Job, tensors: Iterable[tuple[str, Tensor]]) -> SendResult:
        if not self._buffers:
            size = min(self.plan.bucket_bytes, self.plan.total_bytes)
            self._buffers = [
                torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(2)
            ]
        count = self.plan.bucket_count
        clock = _Clock()
        checksums: list[int] = []
        before: Work | None = None
        for bucket in clock.each("assemble", self.plan.pack(tensors, self._buffers)):
            i = len(checksums)
            with clock("verify"):
                checksums.append(checksum(bucket))
            with clock("wire"):
                sent = self._broadcast(job, bucket, f"sending bucket {i + 1} of {count}")
                if (
                    before is not None
                ):  # the next bucket is assembled where this one was, while bucket i is on the wire
                    self._wait(job, before, f"sending bucket {i} of {count}")
            before = sent
        if before is not None:
            with clock("wire"):
                self._wait(job, before, f"sending bucket {count} of {count}")
        return SendResult(
            checksums, clock["assemble"], clock["verify"], clock["wire"], clock.elapsed
        )

    def receive(self, job: Job, flat: Tensor) -> Staged:
        count = self.plan.bucket_count
        clock = _Clock()
        checksums: list[int] = []
        coming = enumerate(self.plan.buckets(flat), 1)
        # Two are under way, so that the wire is never idle for a checksum. No more: on a peer that
        # hangs, each two wait out their deadline.
        posted: deque[tuple[Work, Tensor]] = deque()

        def post() -> None:
            if (following := next(coming, None)) is not None:
                i, bucket = following
                posted.append(
                    (self._broadcast(job, bucket, f"receiving bucket {i} of {count}"), bucket)
                )

        with clock("wire"):
            post()
            post()
        while posted:
            work, bucket = posted.popleft()
            with clock("wire"):
                self._wait(job, work, f"receiving bucket {len(checksums) + 1} of {count}")
                post()
            with clock("verify"):
                checksums.append(checksum(bucket))
        return Staged(self.plan.unpack(flat), checksums, clock["wire"], clock["verify"], flat)

    def close(self) -> None:
        """Let go of everything. In gloo this waits for broadcasts that are still under way, which
        end at their deadline."""
        group, self._group = self._group, None
        self._buffers = []
        if group is not None and self._device.type == "cuda":
            group.abort()

    def _agree_with_engines(self, job: Job, store: Store) -> None:
        engines = range(1, self.engine_handle.world)
        with job.step("offering the plan to the engines"):
            store.set("plan", msgspec.json.encode(self.plan).decode())
        refusals = []
        for rank in engines:
            with job.step(
                f"waiting for the engine of rank {rank} to join epoch {self.engine_handle.epoch}"
            ) as left:
                store.wait([f"answer/{rank}"], left)
                answer = bytes(store.get(f"answer/{rank}")).decode()
            if answer != _AGREED:
                refusals.append(f"the engine of rank {rank} refused: {answer}")
        outcome = "; ".join(refusals) or _AGREED
        with job.step("answering the engines"):
            store.set("go", outcome)
        if refusals:
            raise TransferError(outcome)

    def _agree_with_trainer(self, job: Job, store: Store) -> None:
        with job.step(f"waiting for the trainer to open epoch {self.engine_handle.epoch}") as left:
            store.wait(["plan"], left)
            trainers = msgspec.json.decode(bytes(store.get("plan")), type=Plan)
        difference = self.plan.difference(trainers, "this engine's model", "the trainer's")
        with job.step("answering the trainer"):
            store.set(f"answer/{self.engine_handle.rank}", difference or _AGREED)
        if difference:
            raise PlanMismatch(difference)
        with job.step("waiting for the other engines to join") as left:
            store.wait(["go"], left)
            outcome = bytes(store.get("go")).decode()
        if outcome != _AGREED:
            raise TransferError(outcome)

    def _broadcast(self, job: Job, bucket: Tensor, doing: str) -> Work:
        assert self._group is not None
        with job.step(doing) as left:
            return self._group.broadcast(bucket, 0, left)

    def _wait(self, job: Job, work: Work, doing: str) -> None:
        with job.step(doing) as left:
            work.wait(left)


_AGREED = "agreed"


class _Clock:
    """Seconds by cause."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, cause: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[cause] = self[cause] + time.perf_counter() - start

    def each(self, cause: str, items: Iterator[Tensor]) -> Iterator[Tensor]:
        """The items, with the time it takes to make each."""
        while True:
            with self(cause):
                item = next(items, None)
            if item is None:
                return
            yield item

    def __getitem__(self, cause: str) -> float:
        return self._seconds.get(cause, 0.0)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start
