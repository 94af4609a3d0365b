"""The process group of one epoch: its processes agree on a plan, and buckets go through it.

    trainer (rank 0)    offers its plan in the store → reads each answer → says go, or why not
    engine (rank ≥ 1)   compares it with its own     → answers           → waits for go
    all                 connect by gloo or NCCL; then each bucket is sent in pieces
                        (`bucket_pieces`), on one machine by memory that they share
                        (`shared_memory`), or with `full_every` over 1 as the head of a delta, and
                        its body (`deltas`)

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
from typing import NamedTuple, cast

import msgspec
import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from asyncrl.weightsync.bucket_pieces import MOST, Piece, packed, pieces
from asyncrl.weightsync.buckets import Plan, PlanMismatch
from asyncrl.weightsync.checksum import BucketSums
from asyncrl.weightsync.deltas import Delta, delta, empty_body, empty_head, whole
from asyncrl.weightsync.direct_weights import DirectWeights
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.process_group import Collective, Job, Posted, connect_group
from asyncrl.weightsync.shared_memory import Coming, GlooGroup, Held, MemoryGroup, Ring
from asyncrl.weightsync.stores import FILE, open_store, own_address
from asyncrl.weightsync.transport import Received, Sent

_AGREED, _WITHOUT = "agreed", "agreed, without shared memory"


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
        self._ring: Ring | None = None
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
            group = connect_group(
                store,
                rendezvous.rank,
                rendezvous.world,
                address=address,
                device=self._device,
                timeout=left,
            )
        self._group = group
        if self._ring is not None:
            gloo = cast(GlooGroup, group)
            self._group = MemoryGroup(gloo, self._ring, rendezvous.rank, rendezvous.world)

    def send(self, job: Job, tensors: Iterable[tuple[str, Tensor]]) -> Sent:
        checksums, sent_bytes = list[int](), 0
        sums, before = BucketSums(0), list[Posted]()
        for number, start, part, cut in self._parts(tensors):
            if start == 0:
                checksums.append(0)
                sums = BucketSums(self._size(number))
            doing = f"sending bucket {number + 1} of {self.plan.bucket_count}"
            sent = [self._broadcast(job, each, doing) for each in cut if each.numel()]
            sums.add(start, part)
            # the next part is assembled where this one was, while this one is on the wire
            self._wait_all(job, before, doing)
            before = sent
            sent_bytes += sum(each.nbytes for each in cut)
            if start + part.numel() == self._size(number):
                checksums[-1] = sums.checksum
        self._wait_all(job, before, f"sending bucket {self.plan.bucket_count}")
        self._transfers += 1
        return Sent(checksums, sent_bytes, [])

    def _parts(
        self, tensors: Iterable[tuple[str, Tensor]]
    ) -> Iterator[tuple[int, int, Tensor, tuple[Tensor, ...]]]:
        """Each part of each bucket: the bucket's number, the part's place in it, its bytes, and
        what is broadcast of it. A part is a piece, or where deltas may be sent a whole bucket."""
        buffers = self._two_buffers()
        if self._full_every == 1:
            for piece, part in packed(self.plan, tensors, buffers):
                cut = () if self._is_there(piece.bucket) else (part,)
                yield piece.bucket, piece.within, part, cut
            return
        full = self._transfers % self._full_every == 0
        if self._before is None:
            self._before = torch.empty(self.plan.total_bytes, dtype=torch.uint8)
        pairs = zip(self.plan.pack(tensors, buffers), self.plan.buckets(self._before), strict=True)
        for number, (bucket, old) in enumerate(pairs):
            if self._is_there(number):
                yield number, 0, bucket, ()
                continue
            change = whole(bucket) if full else delta(old, bucket)
            change.apply(old, old)
            yield number, 0, bucket, change

    def _two_buffers(self) -> list[Tensor]:
        """Memory for two parts, one of which is on the wire."""
        if not self._buffers:
            size = min(self.plan.bucket_bytes, self.plan.total_bytes)
            if self._full_every == 1:
                size = min(size, MOST)
            self._buffers = [
                torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(2)
            ]
        return self._buffers

    def receive(self, job: Job, flat: Tensor) -> Received:
        """The weights are views of `flat`."""
        checksums: list[int] = []
        coming = self._coming(job, flat)
        # Two are under way, so that the wire is never idle for a checksum. No more: on a peer that
        # hangs, each two wait out their deadline.
        posted, sums = deque(islice(coming, 2)), BucketSums(0)
        while posted:
            arrival = posted.popleft()
            if arrival.work is not None:
                self._wait(job, arrival.work, arrival.doing)
            posted.extend(islice(coming, 1))
            if arrival.delta is not None:
                arrival.delta.apply(arrival.before, arrival.part)
            if arrival.piece.within == 0:
                sums = BucketSums(self._size(arrival.piece.bucket))
            sums.add(arrival.piece.within, arrival.part)
            if self._ends(arrival.piece):
                checksums.append(sums.checksum)
        self._before = flat
        self._transfers += 1
        return Received(checksums, self.plan.unpack(flat))

    def _coming(self, job: Job, flat: Tensor) -> Iterator[_Arrival]:
        """Post each piece; where deltas may come, each bucket, after waiting for its head, which
        says how long its body is."""
        # in the first transfer there are no deltas, and one all the same shows in the checksums
        before = flat if self._before is None else self._before
        for piece in pieces(self.plan) if self._full_every == 1 else self._buckets():
            doing = f"receiving bucket {piece.bucket + 1} of {self.plan.bucket_count}"
            part, old = flat[piece.start : piece.end], before[piece.start : piece.end]
            if self._is_there(piece.bucket):
                yield _Arrival(piece, doing, None, part, whole(old), old)
                continue
            if self._full_every == 1:
                work = self._broadcast(job, part, doing)
                yield _Arrival(piece, doing, work, part, None, old)
                continue
            head = empty_head(part.numel())
            self._wait(job, self._broadcast(job, head, doing), doing)
            coming = Delta(head, empty_body(head, part))
            posted = self._broadcast(job, coming.body, doing) if coming.body.numel() else None
            yield _Arrival(piece, doing, posted, part, coming, old)

    def _buckets(self) -> Iterator[Piece]:
        """Each bucket as one piece."""
        for number in range(self.plan.bucket_count):
            start = number * self.plan.bucket_bytes
            yield Piece(number, start, start, start + self._size(number))

    def receive_direct(self, job: Job, weights: DirectWeights) -> list[int]:
        """Receive all buckets into an engine's own weights. Returns a checksum of each, read back
        from the weights."""
        checksums = list[int]()
        posted: deque[tuple[Posted, Tensor, str]] = deque()
        coming = (piece for piece in pieces(self.plan) if not self._is_there(piece.bucket))

        def post(turn: int) -> None:
            if (piece := next(coming, None)) is not None:
                doing = f"receiving bucket {piece.bucket + 1} of {self.plan.bucket_count}"
                posted.append((*self._into(job, piece, turn, doing), doing))

        post(0)
        post(1)  # as in `receive`, two are under way
        sums, written = BucketSums(0), 0
        for piece in pieces(self.plan):
            if piece.within == 0:
                sums = BucketSums(self._size(piece.bucket))
            if not self._is_there(piece.bucket):
                work, part, doing = posted.popleft()
                self._wait(job, work, doing)
                weights.write(job, piece, part)
                if isinstance(work, Coming):
                    with job.step(doing) as left:
                        work.read(left)
                post(written)
                written += 1
            weights.add(sums, piece)
            if self._ends(piece):
                checksums.append(sums.checksum)
        self._transfers += 1
        return checksums

    def _into(self, job: Job, piece: Piece, turn: int, doing: str) -> tuple[Posted, Tensor]:
        """A posted piece, and where its bytes will be: in a slot, or in a buffer of this
        process."""
        size = piece.end - piece.start
        if isinstance(self._group, MemoryGroup):
            with job.step(doing) as left:
                coming = self._group.coming(size, left)
            return coming, coming.slot
        part = self._two_buffers()[turn % 2][:size]
        return self._broadcast(job, part, doing), part

    def _ends(self, piece: Piece) -> bool:
        """True if it is the last of its bucket."""
        return piece.end - piece.bucket_start == self._size(piece.bucket)

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
        self._buffers, self._ring = [], None
        if group is not None and self._device.type == "cuda":
            group.abort()

    def _agree_with_engines(self, job: Job, store: Store) -> None:
        ring = Ring.offer() if self._shares else None
        try:
            outcome = self._outcome(job, store, ring)
        finally:
            if ring is not None:
                ring.close()
        with job.step("answering the engines"):
            store.set("go", outcome)
        if outcome not in (_AGREED, _WITHOUT):
            raise TransferError(outcome)
        self._ring = ring if outcome == _AGREED else None

    @property
    def _shares(self) -> bool:
        """True if all processes are on one machine, and broadcasts are of pieces."""
        on_host = self._device.type == "cpu" and self._full_every == 1
        return on_host and self.rendezvous.store.startswith(FILE)

    def _outcome(self, job: Job, store: Store, ring: Held | None) -> str:
        """The answer to the engines: whether they agree with the plan, and all have the memory."""
        engines, without, refusals = range(1, self.rendezvous.world), ring is None, []
        with job.step("offering the plan to the engines"):
            store.set("memory", ring.place if ring else "")
            store.set("plan", msgspec.json.encode(self.plan).decode())
        for rank in engines:
            with job.step(
                f"waiting for the engine of rank {rank} to join epoch {self.rendezvous.epoch}"
            ) as left:
                store.wait([f"answer/{rank}"], left)
                answer = bytes(store.get(f"answer/{rank}")).decode()
            without |= answer == _WITHOUT
            if answer not in (_AGREED, _WITHOUT):
                refusals.append(f"the engine of rank {rank} refused: {answer}")
        return "; ".join(refusals) or (_WITHOUT if without else _AGREED)

    def _agree_with_trainer(self, job: Job, store: Store) -> None:
        with job.step(f"waiting for the trainer to open epoch {self.rendezvous.epoch}") as left:
            store.wait(["plan"], left)
            trainers = msgspec.json.decode(bytes(store.get("plan")), type=Plan)
            place = bytes(store.get("memory")).decode()
        ring = Ring.at(place) if place and self._shares else None
        difference = self.plan.difference(trainers, "this engine's model", "the trainer's")
        with job.step("answering the trainer"):
            agreed = _WITHOUT if ring is None else _AGREED
            store.set(f"answer/{self.rendezvous.rank}", difference or agreed)
        if difference:
            raise PlanMismatch(difference)
        with job.step("waiting for the other engines to join") as left:
            store.wait(["go"], left)
            outcome = bytes(store.get("go")).decode()
        if outcome not in (_AGREED, _WITHOUT):
            raise TransferError(outcome)
        self._ring = ring if outcome == _AGREED else None

    def _broadcast(self, job: Job, bucket: Tensor, doing: str) -> Posted:
        assert self._group is not None
        with job.step(doing) as left:
            return self._group.broadcast(bucket, 0, left)

    def _wait(self, job: Job, work: Posted, doing: str) -> None:
        with job.step(doing) as left:
            work.wait(left)

    def _wait_all(self, job: Job, sent: Iterable[Posted], doing: str) -> None:
        for work in sent:
            self._wait(job, work, doing)


class _Arrival(NamedTuple):
    """A piece under way: as it is, or as a delta of what was there `before`. No `work` is left to
    wait for where nothing changed."""

    piece: Piece
    doing: str
    work: Posted | None
    part: Tensor
    delta: Delta | None
    before: Tensor
