"""The process group of one epoch: its processes agree on a plan, and buckets go through it.

    trainer (rank 0)    offers its plan in the store → reads each answer → says go, or why not
    engine (rank ≥ 1)   compares it with its own     → answers           → waits for go
    all                 connect by gloo or NCCL; then each bucket is one broadcast, or with
                        `full_every` over 1 two: the head of a delta, and its body (`deltas`)

A delta is relative to the group's last transfer, of weights or of their average. Every process of a
group has received that, as the first failure ends the group; so the base of a delta need not be
named, and the first transfer of a group has all bytes. Later ones have none of buckets that never
change (`Plan.still`). Both sides compute the checksum of all bytes each time.

Groups are gloo on the CPU and NCCL on CUDA devices (the latter unproven: written for, never run).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store, Work  # type: ignore[attr-defined]

from asyncrl.weightsync.buckets import Plan, PlanMismatch
from asyncrl.weightsync.checksum import checksum
from asyncrl.weightsync.deltas import Delta, delta, empty_body, empty_head, whole
from asyncrl.weightsync.direct_weights import DirectWeights
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.process_group import Collective, Job, connect_group
from asyncrl.weightsync.stores import open_store, own_address
from asyncrl.weightsync.transport import Received, Sent

_AGREED = "agreed"


class Rendezvous(msgspec.Struct, frozen=True):
    """The place of a process in a group, and the address of the trainer's store where all meet
    (`stores.served_store`)."""

    epoch: int
    rank: int
    world: int
    store: str


class EpochGroup:
    """The process group of one epoch, its buffers and its plan. Every method runs in a worker
    thread.

    Of `full_every` transfers one has all bytes, and the others what changed; all processes have
    the same. With 1, and on a device that is no CPU, each has all.
    """

    def __init__(
        self, rendezvous: Rendezvous, plan: Plan, device: torch.device, full_every: int = 1
    ) -> None:
        self.rendezvous = rendezvous
        self.plan = plan
        self._device = device
        self._full_every = full_every if device.type == "cpu" else 1
        self._stays, self._transfers = plan.stays(), 0
        self._before: Tensor | None = None  # [total_bytes], of the transfer before
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

    def send(self, job: Job, tensors: Iterable[tuple[str, Tensor]]) -> Sent:
        if not self._buffers:
            size = min(self.plan.bucket_bytes, self.plan.total_bytes)
            self._buffers = [
                torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(2)
            ]
        count = self.plan.bucket_count
        checksums: list[int] = []
        sent_bytes = 0
        before: list[Work] = []
        parts = self._parts(self.plan.pack(tensors, self._buffers))
        for i, (bucket, cut) in enumerate(parts):
            checksums.append(checksum(bucket))
            doing = f"sending bucket {i + 1} of {count}"
            sent = [self._broadcast(job, part, doing) for part in cut if part.numel()]
            # the next bucket is assembled where this one was, while bucket i is on the wire
            self._wait_all(job, before, f"sending bucket {i} of {count}")
            before = sent
            sent_bytes += sum(part.nbytes for part in cut)
        self._wait_all(job, before, f"sending bucket {count} of {count}")
        self._transfers += 1
        return Sent(checksums, sent_bytes, [])

    def _parts(self, buckets: Iterator[Tensor]) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """Each bucket, and what is broadcast of it."""
        if self._full_every == 1:
            for number, bucket in enumerate(buckets):
                yield bucket, () if self._is_there(number) else (bucket,)
            return
        full = self._transfers % self._full_every == 0
        if self._before is None:
            self._before = torch.empty(self.plan.total_bytes, dtype=torch.uint8)
        pairs = zip(buckets, self.plan.buckets(self._before), strict=True)
        for number, (bucket, old) in enumerate(pairs):
            if self._is_there(number):
                yield bucket, ()
                continue
            cut = whole(bucket) if full else delta(old, bucket)
            cut.apply(old, old)
            yield bucket, cut

    def receive(self, job: Job, flat: Tensor) -> Received:
        """The weights are views of `flat`."""
        checksums: list[int] = []
        coming = self._coming(job, flat)
        # Two are under way, so that the wire is never idle for a checksum. No more: on a peer that
        # hangs, each two wait out their deadline.
        posted = deque(islice(coming, 2))
        while posted:
            arrival = posted.popleft()
            if arrival.work is not None:
                self._wait(job, arrival.work, arrival.doing)
            posted.extend(islice(coming, 1))
            if arrival.delta is not None:
                arrival.delta.apply(arrival.before, arrival.bucket)
            checksums.append(checksum(arrival.bucket))
        self._before = flat
        self._transfers += 1
        return Received(checksums, self.plan.unpack(flat))

    def _coming(self, job: Job, flat: Tensor) -> Iterator[_Arrival]:
        """Post each bucket; where deltas may come, wait for its head first, which says how long its
        body is."""
        count = self.plan.bucket_count
        # in the first transfer there are no deltas, and one all the same shows in the checksums
        before = flat if self._before is None else self._before
        buckets = zip(self.plan.buckets(flat), self.plan.buckets(before), strict=True)
        for i, (bucket, old) in enumerate(buckets, 1):
            doing = f"receiving bucket {i} of {count}"
            if self._is_there(i - 1):
                yield _Arrival(doing, None, bucket, whole(old), old)
                continue
            if self._full_every == 1:
                work = self._broadcast(job, bucket, doing)
                yield _Arrival(doing, work, bucket, None, old)
                continue
            head = empty_head(bucket.numel())
            self._wait(job, self._broadcast(job, head, doing), doing)
            coming = Delta(head, empty_body(head, bucket))
            posted = self._broadcast(job, coming.body, doing) if coming.body.numel() else None
            yield _Arrival(doing, posted, bucket, coming, old)

    def receive_direct(self, job: Job, weights: DirectWeights) -> list[int]:
        """Receive all buckets into an engine's own weights. Returns a checksum of each, read back
        from the weights."""
        count, size = self.plan.bucket_count, min(self.plan.bucket_bytes, self.plan.total_bytes)
        if not self._buffers:
            self._buffers = [
                torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(3)
            ]
        checksums: list[int] = []
        posted: deque[tuple[Work, Tensor, str]] = deque()
        coming = [number for number in range(count) if not self._is_there(number)]

        def post(number: int) -> None:
            at = coming.index(number) % 2
            bucket, doing = self._buffers[at], f"receiving bucket {number + 1} of {count}"
            bucket = bucket[: self._size(number)]
            posted.append((self._broadcast(job, bucket, doing), bucket, doing))

        for number in coming[:2]:  # as in `receive`, two are under way
            post(number)
        after = iter(coming[2:])
        for number in range(count):
            if not self._is_there(number):
                work, bucket, doing = posted.popleft()
                self._wait(job, work, doing)
                weights.write(job, number, bucket)
                if (following := next(after, None)) is not None:
                    post(following)
            back = self._buffers[2][: self._size(number)]
            weights.read(number, back)
            checksums.append(checksum(back))
        self._transfers += 1
        return checksums

    def _is_there(self, number: int) -> bool:
        """True if every process of the group has this bucket, as it will always be."""
        return self._transfers > 0 and self._stays[number]

    def _size(self, number: int) -> int:
        """Bytes of a bucket, counted from 0; the last may have fewer."""
        return min(self.plan.bucket_bytes, self.plan.total_bytes - number * self.plan.bucket_bytes)

    def close(self) -> None:
        """Release everything. In gloo this waits for broadcasts that are still under way, which end
        at their deadline."""
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

    def _wait_all(self, job: Job, sent: Iterable[Work], doing: str) -> None:
        for work in sent:
            self._wait(job, work, doing)


class _Arrival(NamedTuple):
    """A bucket under way: as it is, or as a delta of what was there `before`. No `work` is left to
    wait for where nothing changed."""

    doing: str
    work: Work | None
    bucket: Tensor
    delta: Delta | None
    before: Tensor
