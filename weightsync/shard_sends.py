"""Parts of tensors sent from every rank that holds them straight to every rank that needs them.
Invariant: all ranks carry out the same list of messages, each its own in the list's order, so none
waits in a circle; and a rank's memory beside its weights is that of a few messages.

    a source   copies the moves of a message into one buffer → checksum → send
    a target   receive → writes its parts → checksum of what stands there

Both sides give the checksums of each of their links, which the coordinator would compare. Where the
parts of a link are all there, its sums are equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import Work

from asyncrl.weightsync.buckets import DTYPES, Spec
from asyncrl.weightsync.checksum import checksum
from asyncrl.weightsync.process_group import Job, PairGroup
from asyncrl.weightsync.shards import Move, ShardMessage

LinkSums = dict[tuple[int, int], list[int]]
"""The checksums of the messages of each link: source, target."""
UNDER_WAY = 2
"""Messages of a rank that are on the wire while it packs or writes another."""


class Side(NamedTuple):
    """A rank of the group, and its own tensors by name. Those of a target may be of a wider type
    than the one that `specs` say is sent."""

    rank: int
    held: Mapping[str, Tensor]
    specs: Mapping[str, Spec]

    def own(self, name: str, start: Sequence[int], size: Sequence[int]) -> Tensor:
        """A view of numbers of an own tensor."""
        tensor = self.held[name].detach()
        if not tensor.dim():
            tensor = tensor.view(1)
        for dim, (first, count) in enumerate(zip(start, size, strict=True)):
            tensor = tensor.narrow(dim, first, count)
        return tensor


def exchange(job: Job, group: PairGroup, side: Side, messages: Sequence[ShardMessage]) -> LinkSums:
    """Send and receive all that this rank has a part in; in a worker thread. Raises
    TransferError."""
    sums: LinkSums = {}
    posted: deque[tuple[Work, ShardMessage, Tensor]] = deque()
    for message in messages:
        if side.rank not in (message.source, message.target):
            continue
        other = message.target if side.rank == message.source else message.source
        doing = f"message {message.number + 1} with rank {other}"
        buffer = torch.empty(message.nbytes, dtype=torch.uint8)
        if side.rank == message.source:
            _packed(side, message.moves, buffer)
            _add(sums, message, buffer)
        with job.step(doing):
            post = group.send if side.rank == message.source else group.recv
            posted.append((post([buffer], other, message.number), message, buffer))
        if len(posted) > UNDER_WAY:
            _finish(job, side, *posted.popleft(), sums)
    while posted:
        _finish(job, side, *posted.popleft(), sums)
    return sums


def _finish(
    job: Job, side: Side, work: Work, message: ShardMessage, buffer: Tensor, sums: LinkSums
) -> None:
    with job.step(f"message {message.number + 1} of {message.source} to {message.target}") as left:
        work.wait(left)
    if side.rank == message.target:
        at = 0
        for move in message.moves:
            own, dtype = side.own(move.into, move.at, move.size), _sent_as(side, move)
            size = move.count * dtype.itemsize
            with job.step(f"writing {move.into}"):
                own.copy_(buffer[at : at + size].view(dtype).view(move.size))
            buffer[at : at + size].view(dtype).view(move.size).copy_(own)
            at += size
        _add(sums, message, buffer)


def _packed(side: Side, moves: Sequence[Move], buffer: Tensor) -> None:
    at = 0
    for move in moves:
        own, dtype = side.own(move.of, move.start, move.size), _sent_as(side, move)
        size = move.count * dtype.itemsize
        buffer[at : at + size].view(dtype).view(move.size).copy_(own)
        at += size


def _sent_as(side: Side, move: Move) -> torch.dtype:
    return DTYPES[side.specs[move.tensor].dtype]


def _add(sums: LinkSums, message: ShardMessage, buffer: Tensor) -> None:
    sums.setdefault((message.source, message.target), []).append(checksum(buffer))
