"""Rank 0 of a process group whose other ranks are those of SGLang servers: of one, which a rollout
actor gives staged weights, or of many, to which the trainer sends direct. Invariant: servers get
the buckets that were cut, in their order, each as one broadcast of the bytes that its update call
describes; after a failure the group is not used again.

HTTP requests to the server are not this file's business: whoever sends the request
(`init_weights_update_group`, then one `update_weights_from_distributed` a bucket) calls `join` and
`BucketStream.send` at the same time. The two sides meet as torch.distributed's
`init_process_group` would have it: in a store on our side, under a prefix of the group's name. That
is a TCPStore, since SGLang knows no other, so every user of this machine may write to it.

gloo on the CPU, NCCL on a CUDA device (the latter unproven: written for, never run).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import torch
import trio
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from asyncrl.messages.address import TcpAddress
from asyncrl.weightsync.process_group import Collective, Job, Worker, connect_group
from asyncrl.weightsync.stores import open_store, own_address, serve_tcp_store


class ServerBucket(msgspec.Struct, frozen=True):
    """The tensors of one update call, one after the other without padding (SGLang's
    `flattened_bucket`); dtypes as torch names them."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    total_bytes: int


CALLS, MOST_BYTES = 32, 2**30
"""Update calls of a publication, unless buckets of so many bytes need more: a call costs a server a
round of its scheduler while it is paused, and a bucket is held twice on each side."""


def bucket_bytes_of(total_bytes: int, least: int) -> int:
    """Bytes of a bucket for servers, `least` or more.

    >>> [bucket_bytes_of(total, 2**25) / 2**20 for total in (10**9, 16 * 2**30, 140 * 2**30)]
    [32.0, 512.0, 1024.0]
    """
    return max(least, min(MOST_BYTES, -(-total_bytes // CALLS)))


def cut(weights: Mapping[str, Tensor], bucket_bytes: int) -> list[ServerBucket]:
    """Buckets of at most `bucket_bytes` (positive; more for weights of many bytes), in the order
    of `weights`; a tensor that is larger has one of its own. One bucket, whatever its size, has the
    two projections of a latent attention and all between them: SGLang fuses them within one call,
    and drops half a pair.

    A tensor must begin at a multiple of its dtype's size, and there is no padding: where it would
    not, a new bucket begins.
    """
    most = bucket_bytes_of(sum(tensor.nbytes for tensor in weights.values()), bucket_bytes)
    buckets: list[ServerBucket] = []
    open_: list[tuple[str, Tensor]] = []
    filled, half = 0, ""  # the other projection that the open bucket waits for
    for name, tensor in weights.items():
        full = filled + tensor.nbytes > most and not half
        if open_ and (full or filled % tensor.itemsize):
            buckets.append(_bucket(open_, filled))
            open_, filled = [], 0
        open_.append((name, tensor))
        filled += tensor.nbytes
        other = name.replace(".q_a_proj.", ".kv_a_proj_with_mqa.")
        if other != name and other in weights:
            half = other
        elif name == half:
            half = ""
    if open_:
        buckets.append(_bucket(open_, filled))
    return buckets


def _bucket(tensors: Sequence[tuple[str, Tensor]], total_bytes: int) -> ServerBucket:
    return ServerBucket(
        tuple(name for name, _ in tensors),
        tuple(str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors),
        tuple(tuple(tensor.shape) for _, tensor in tensors),
        total_bytes,
    )


class ServerGroup:
    """Use `async with ServerGroup.open(host, ranks) as group`. It is joined once and used for many
    transfers."""

    def __init__(
        self, store: TCPStore, host: str, ranks: int, device: torch.device, bucket_bytes: int
    ) -> None:
        # served for as long as this refers to it
        self._store, self.host, self.port = store, host, int(store.port)
        """The address at which servers find the store."""
        self.world = 1 + ranks
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self.name = _name()
        """Name of the current or next group. `leave` makes a new one: under a name one can meet but
        once."""
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._worker = Worker()
        self._group: Collective | None = None

    @staticmethod
    @asynccontextmanager
    async def open(
        host: str, ranks: int, *, bucket_bytes: int, device: torch.device | str = "cpu"
    ) -> AsyncIterator[ServerGroup]:
        """Host the store on `host` alone, an address of this machine, for a server of `ranks`
        ranks. A `device` of CUDA has a number. Raises TransferError."""
        store = await trio.to_thread.run_sync(serve_tcp_store, host)
        group = ServerGroup(store, host, ranks, torch.device(device), bucket_bytes)
        try:
            yield group
        finally:
            group.leave()

    async def renew(self, ranks: int) -> None:
        """Leave the group, for one with `ranks` others, in a new store: processes that wait in the
        old one get an error. Raises TransferError."""
        self.leave()
        self.world = 1 + ranks
        self._store = await trio.to_thread.run_sync(serve_tcp_store, self.host)
        self.port = int(self._store.port)

    @property
    def joined(self) -> bool:
        return self._group is not None

    async def join(self, deadline_s: float) -> None:
        """Meet the server's ranks, which were asked to join `name`. Raises TransferError where they
        do not come within `deadline_s`."""
        async with self._worker.turn(deadline_s) as job:
            self._group = await self._worker.run(lambda: self._connect(job, self.name))

    def stream(
        self,
        weights: Mapping[str, Tensor],
        arriving: Iterable[tuple[str, Tensor]] | None = None,
    ) -> BucketStream:
        """A stream of `weights`, which must not change until all of it is sent; or of those that
        are `arriving`, of the same names, order and shapes, of which one is held at a time."""
        tensors = weights.items() if arriving is None else arriving
        return BucketStream(self, tensors, cut(weights, self._bucket_bytes))

    def leave(self) -> None:
        """Let go of the group, so that the server's ranks notice; the next one has another name."""
        group, self._group = self._group, None
        self.name = _name()
        if group is not None:
            self._close(group)

    def _close(self, group: Collective) -> None:
        if self._device.type == "cuda":
            group.abort()

    def _connect(self, job: Job, name: str) -> Collective:
        ours = str(TcpAddress(self.host, self.port))
        with job.step(f"looking for our own store at {ours}") as left:
            store = open_store(ours, left)
        device = "cuda" if self._device.type == "cuda" else "cpu"
        meeting = PrefixStore(f"{device}/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        with job.step(f"waiting for the {self.world - 1} ranks of servers to join {name}") as left:
            address = own_address(ours)
            return connect_group(
                meeting, 0, self.world, address=address, device=self._device, timeout=left
            )

    async def _broadcast(self, stream: BucketStream, doing: str, deadline_s: float) -> None:
        async with self._worker.turn(deadline_s) as job:
            # only success puts it back, so that a broken one has no way to be used again
            if self._group is None:
                raise ValueError("nothing can be sent in a group that is not joined")
            held, self._group = [self._group], None

            def send() -> Collective:
                used = held[0]
                with job.step(doing) as left:
                    work = used.broadcast(stream.take(), 0, left)
                stream.assemble()  # the next bucket, while this one is on the wire
                with job.step(doing) as left:
                    work.wait(left)
                return used

            # An error's traceback refers to this frame: with the group in it, connections would
            # stay open, and servers that wait for a broadcast would not be told.
            self._group = await self._worker.run(send, lambda: self._close(held.pop()))


class BucketStream:
    """Weights on their way into a server, bucket by bucket: call `send` once for each of `buckets`,
    in their order."""

    def __init__(
        self,
        group: ServerGroup,
        weights: Iterable[tuple[str, Tensor]],
        buckets: Sequence[ServerBucket],
    ) -> None:
        self.buckets = buckets
        self._group = group
        self._sent = 0
        self._packed = _packed(weights, buckets, group._device)
        self._next: Tensor | None = None

    async def send(self, deadline_s: float) -> None:
        """Broadcast the next bucket within `deadline_s` seconds, while the server was asked to take
        it.

        Raises TransferError where a rank of the server dies or is late; the group is over then.
        """
        if self._sent == len(self.buckets):
            raise ValueError(f"all {self._sent} buckets were sent")
        self._sent += 1
        await self._group._broadcast(
            self, f"sending bucket {self._sent} of {len(self.buckets)} to the server", deadline_s
        )

    def assemble(self) -> None:
        if self._next is None:
            self._next = next(self._packed, None)

    def take(self) -> Tensor:
        self.assemble()
        flat, self._next = self._next, None
        assert flat is not None  # `send` counts
        return flat


def _packed(
    weights: Iterable[tuple[str, Tensor]], buckets: Sequence[ServerBucket], device: torch.device
) -> Iterator[Tensor]:
    """The bytes of each bucket, `[total_bytes]` uint8, of weights that come in the buckets' order.
    One is written again only when the iterator is advanced twice; the bytes of a tensor alone in
    its bucket are not copied at all."""
    coming = iter(weights)

    def bytes_of(name: str) -> Tensor:
        came, tensor = next(coming)
        assert came == name, f"{came} came in place of {name}"
        return _bytes(tensor)

    size = max((bucket.total_bytes for bucket in buckets if len(bucket.names) > 1), default=0)
    buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
    for i, bucket in enumerate(buckets):
        if len(bucket.names) == 1:
            yield bytes_of(bucket.names[0]).to(device)
            continue
        filled, begin = buffers[i % 2][: bucket.total_bytes], 0
        for name in bucket.names:  # not by `torch.cat`, which takes no parts of another device
            part = bytes_of(name)
            filled[begin : begin + len(part)].copy_(part)
            begin += len(part)
            del part
        yield filled


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _name() -> str:
    """Never used before, by whatever process: a server remembers the names of groups whose actor
    has died."""
    return f"asyncrl-{uuid.uuid4().hex}"
