"""The trainer's side of direct publications into servers. Invariant: nothing is sent in an epoch
that not everybody has joined, and after a failure its group is not used again.

One process group has the trainer as rank 0 and every rank of every server: a bucket is one
broadcast, whatever their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

import torch
import trio
from torch import Tensor

from weightsync.buckets import Plan
from weightsync.errors import TransferError
from weightsync.group import Worker
from weightsync.server_group import ServerGroup
from weightsync.server_meeting import MeetingAnswer, ServerGo, ServerMeeting, ServerOffer
from weightsync.stores import served_store

Compute = Callable[[list[bytes]], list[bytes]]
"""Makes of what each actor wants what it gets: hashing, in a worker thread."""


class ServerSender:
    """Use `async with ServerSender.open(host, path) as sender`."""

    def __init__(self, store: str, group: ServerGroup) -> None:
        self.store = store
        """The address at which rollout actors find the store."""
        self._group = group
        self._worker = Worker()
        self._epoch = -1

    @staticmethod
    @asynccontextmanager
    async def open(
        host: str, path: Path, *, bucket_bytes: int, device: torch.device | str = "cpu"
    ) -> AsyncIterator[ServerSender]:
        """Have the store as of `Sender.open`, and groups of servers that reach this machine at
        `host`. Raises TransferError."""
        with served_store(host, path) as store:
            async with ServerGroup.open(host, 0, bucket_bytes=bucket_bytes, device=device) as group:
                yield ServerSender(store, group)

    async def join(
        self,
        publication: int,
        epoch: int,
        actors: int,
        plan: Plan,
        compute: Compute,
        deadline_s: float,
    ) -> int:
        """Meet the `actors` of the epoch: compare plans, compute what they want, and join their
        servers, unless that was done in this epoch. Returns a digest of what was computed, which
        each actor has, and answers with when it has compared its servers with it. Raises
        TransferError where one refuses or does not come, within `deadline_s` seconds, and for an
        epoch that is over."""
        group = self._group
        if epoch < self._epoch:
            raise TransferError(f"epoch {epoch} is over: publish in a new one")
        if epoch > self._epoch or not group.joined:
            self._epoch = epoch
            await group.renew(0)
        end = trio.current_time() + deadline_s
        offer = ServerOffer(plan, group.host, group.port, group.name, group.backend)
        async with self._worker.turn(deadline_s) as job:

            def meet() -> tuple[int, int]:
                meeting = ServerMeeting(job, self.store, publication)
                answers = meeting.ask(offer, actors)
                refusals = [
                    f"the engine of rank {rank} refused: {answer.error}"
                    for rank, answer in enumerate(answers, 1)
                    if answer.error
                ]
                if refusals:
                    meeting.go([ServerGo(error="; ".join(refusals))] * actors)
                    raise TransferError("; ".join(refusals))
                computed = compute([answer.wanted for answer in answers])
                digest = _digest(publication, computed)
                meeting.go(_places(answers, computed, digest))
                return sum(answer.ranks for answer in answers), digest

            ranks, digest = await self._worker.run(meet, _nothing)
        if not group.joined:
            group.world = 1 + ranks
            await self._left_if_failed(group.join(max(0.1, end - trio.current_time())))
        return digest

    async def send(self, weights: Mapping[str, Tensor], deadline_s: float) -> int:
        """Broadcast the weights, of the plan, to all servers within `deadline_s` seconds, each of
        which is asked to take them; the bytes sent to each. Raises TransferError."""
        if not self._group.joined:
            raise TransferError("the servers have not joined, or have left: publish again")
        end = trio.current_time() + deadline_s
        transfer = self._group.transfer(weights)
        for _ in transfer.buckets:
            left = max(0.1, end - trio.current_time())
            await self._left_if_failed(transfer.send(left))
        return sum(bucket.total_bytes for bucket in transfer.buckets)

    async def _left_if_failed(self, step: Awaitable[None]) -> None:
        done = False
        try:
            await step
            done = True
        finally:
            if not done:  # so that servers that wait for a broadcast notice
                self._group.leave()


def _places(answers: list[MeetingAnswer], computed: list[bytes], digest: int) -> list[ServerGo]:
    """Each actor's place in the group, whose rank 0 is the trainer."""
    ends = list(accumulate((answer.ranks for answer in answers), initial=1))
    return [
        ServerGo(ends[-1], first, found, digest)
        for first, found in zip(ends[:-1], computed, strict=True)
    ]


def _digest(publication: int, computed: list[bytes]) -> int:
    """Of a publication and what was computed for it: 0 to 2**63 - 1."""
    hashed = hashlib.blake2b(publication.to_bytes(8, "little"), digest_size=8)
    for part in computed:
        hashed.update(hashlib.blake2b(part).digest())
    return int.from_bytes(hashed.digest(), "little") >> 1


def _nothing() -> None:
    """Nothing is open."""
