"""The process group of one epoch: its processes agree on a plan, and buckets go through it.

    trainer (rank 0)    offers its plan in the store → reads each answer → says go, or why not
    engine (rank ≥ 1)   compares it with its own     → answers           → waits for go
    all                 connect by gloo or NCCL; then each bucket is one broadcast

Groups are gloo on the CPU and NCCL on CUDA devices (the latter unproven: written for, never run).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store, Work  # type: ignore[attr-defined]

from weightsync.buckets import Plan, PlanMismatch
from weightsync.checksum import checksum
from weightsync.errors import TransferError
from weightsync.group import Collective, Job, connect_group
from weightsync.stores import open_store, own_address

_AGREED = "agreed"


class SendResult(msgspec.Struct, frozen=True):
    """A finished sending: one checksum a bucket, and the seconds of the sending thread by cause.

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
    """A finished reception: `weights` by name are views of `flat`, and are overwritten by the
    receiver's next `receive` unless kept."""

    weights: dict[str, Tensor]
    checksums: list[int]
    wire_seconds: float
    verify_seconds: float
    flat: Tensor


class Rendezvous(msgspec.Struct, frozen=True):
    """The place of a process in a group, and the address of the trainer's store where all meet
    (`stores.served_store`)."""

    epoch: int
    rank: int
    world: int
    store: str


class EpochGroup:
    """The process group of one epoch, its buffers and its plan. Every method runs in a worker
    thread."""

    def __init__(self, rendezvous: Rendezvous, plan: Plan, device: torch.device) -> None:
        self.rendezvous = rendezvous
        self.plan = plan
        self._device = device
        self._group: Collective | None = None
        self._buffers: list[Tensor] = []

    def join(self, job: Job) -> None:
        """Agree on the plan with the others and connect to them; once."""
        if self._group is not None:
            return
        rendezvous = self.rendezvous
        with job.step(f"looking for the trainer's store at {rendezvous.store}") as left:
            store = PrefixStore(f"epoch/{rendezvous.epoch}", open_store(rendezvous.store, left))
        if rendezvous.rank == 0:
            self._agree_with_engines(job, store)
        else:
            self._agree_with_trainer(job, store)
        with job.step("connecting to the other processes of the group") as left:
            address = own_address(rendezvous.store)
            self._group = connect_group(
                store,
                rendezvous.rank,
                rendezvous.world,
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
                # the next bucket is assembled where this one was, while bucket i is on the wire
                if before is not None:
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
        engines = range(1, self.rendezvous.world)
        with job.step("offering the plan to the engines"):
            store.set("plan", msgspec.json.encode(self.plan).decode())
        refusals = []
        for rank in engines:
            with job.step(
                f"waiting for the engine of rank {rank} to join epoch {self.rendezvous.epoch}"
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
        with job.step(f"waiting for the trainer to open epoch {self.rendezvous.epoch}") as left:
            store.wait(["plan"], left)
            trainers = msgspec.json.decode(bytes(store.get("plan")), type=Plan)
        difference = self.plan.difference(trainers, "this engine's model", "the trainer's")
        with job.step("answering the trainer"):
            store.set(f"answer/{self.rendezvous.rank}", difference or _AGREED)
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
