"""The trainer's side of direct publications into servers. Invariant: nothing is sent in an epoch
that not every member has joined, and after a failure its group is not used again.

One process group has the trainer as rank 0 and every rank of every server: a bucket is one
broadcast, whatever their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

import msgspec
import torch
import trio
from torch import Tensor

from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.process_group import Worker
from asyncrl.weightsync.servers.meeting import (
    MeetingAnswer,
    ServerGo,
    ServerMeeting,
    ServerOffer,
)
from asyncrl.weightsync.servers.server_checksums import Expected, expected
from asyncrl.weightsync.servers.server_group import ServerGroup
from asyncrl.weightsync.servers.server_hashes import hash_on
from asyncrl.weightsync.stores import served_store


class ServersSender:
    """Use `async with ServersSender.open(host, path, …) as sender`."""

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
    ) -> AsyncIterator[ServersSender]:
        """Keep the store as `GroupSender.open` does, and groups of servers that reach this
        machine at `host`. Raises TransferError."""
        with served_store(host, path) as store:
            async with ServerGroup.open(host, 0, bucket_bytes=bucket_bytes, device=device) as group:
                yield ServersSender(store, group)

    async def join(
        self,
        publication: int,
        epoch: int,
        actors: int,
        plan: Plan,
        weights: Iterable[tuple[str, Tensor]],
        deadline_s: float,
    ) -> int:
        """Meet the `actors` of the epoch: compare plans, compute the hashes of `weights`, which may
        arrive one after another, that each one's servers must give, and join these, unless that was
        done in this epoch. Returns a digest of the hashes, with which each actor answers when it
        has compared its servers.
        Raises TransferError where one refuses or does not come, within `deadline_s` seconds, and
        for an epoch that is over."""
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
                hashes = _hashes(answers, weights)
                digest = _digest(publication, hashes)
                meeting.go(_places(answers, hashes, digest))
                return sum(answer.ranks for answer in answers), digest

            ranks, digest = await self._worker.run(meet)
        if not group.joined:
            group.world = 1 + ranks
            await self._left_if_failed(group.join(max(0.1, end - trio.current_time())))
        return digest

    async def send(
        self,
        weights: Mapping[str, Tensor],
        deadline_s: float,
        arriving: Iterable[tuple[str, Tensor]] | None = None,
    ) -> int:
        """Broadcast the weights, of the plan, or those that are `arriving` and have their shapes,
        to all servers within `deadline_s` seconds, each of which is asked to take them; the bytes
        sent to each. Raises TransferError."""
        if not self._group.joined:
            raise TransferError("the servers have not joined, or have left: publish again")
        end = trio.current_time() + deadline_s
        stream = self._group.stream(weights, arriving)
        for _ in stream.buckets:
            left = max(0.1, end - trio.current_time())
            await self._left_if_failed(stream.send(left))
        return sum(bucket.total_bytes for bucket in stream.buckets)

    async def _left_if_failed(self, step: Awaitable[None]) -> None:
        done = False
        try:
            await step
            done = True
        finally:
            if not done:  # so that servers that wait for a broadcast notice
                self._group.leave()


def _hashes(
    answers: Sequence[MeetingAnswer], weights: Iterable[tuple[str, Tensor]]
) -> list[list[Expected]]:
    """The hashes for each actor's servers. Most want the same: a server that does not is another
    one, or has seen less of it."""
    different = {msgspec.json.encode(server): server for each in answers for server in each.servers}
    hashed = {key: server for key, server in different.items() if server.hashes is not None}
    asked = [(server.hashes, hash_on(server.device)) for server in hashed.values() if server.hashes]
    of = dict(zip(hashed, expected(asked, weights), strict=True)) if asked else {}
    return [
        [of.get(msgspec.json.encode(server), {}) for server in answer.servers] for answer in answers
    ]


def _places(
    answers: Sequence[MeetingAnswer], hashes: Sequence[list[Expected]], digest: int
) -> list[ServerGo]:
    """Each actor's place in the group, whose rank 0 is the trainer."""
    ends = list(accumulate((answer.ranks for answer in answers), initial=1))
    return [
        ServerGo(ends[-1], first, own, digest) for first, own in zip(ends[:-1], hashes, strict=True)
    ]


def _digest(publication: int, hashes: Sequence[list[Expected]]) -> int:
    """Of a publication and the hashes for it: 0 to 2**63 - 1."""
    hashed = hashlib.blake2b(publication.to_bytes(8, "little"), digest_size=8)
    for own in hashes:
        hashed.update(hashlib.blake2b(msgspec.json.encode(own)).digest())
    return int.from_bytes(hashed.digest(), "little") >> 1
