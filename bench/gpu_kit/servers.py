"""Weights on their way into servers: sends in the group that a server joins, and the time of the
hashes that its own are compared with, at size."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta

import torch
import trio
from torch import Tensor
from torch.distributed import PrefixStore

from asyncrl.config.published import SLOWEST
from asyncrl.weightsync.process_group import connect_group
from asyncrl.weightsync.servers.server_group import ServerGroup
from asyncrl.weightsync.servers.server_hashes import of_gpu
from asyncrl.weightsync.stores import open_store

from .check import Number, Place
from .peers import peer
from .shapes import QWEN3, TINY, build

HOST, DEADLINE_S = "127.0.0.1", 120.0
LIMIT = timedelta(seconds=DEADLINE_S)
BUCKET = 32 * 2**20
OF_8B = 16.4e9
"""Bytes of Qwen3-8B in bfloat16."""


def sends(place: Place) -> list[Number]:
    """Bytes a second from host memory, and from the device, by gloo to another process, over those
    of a bare broadcast; and to two processes, as to a server of two ranks."""
    found = []
    for held in dict.fromkeys(("cpu", place.device)):
        title = "from host memory" if held == "cpu" else "from the device"
        found += _sent(_weights(place, held), "cpu", title)
    return found + _sent(_weights(place, place.device), "cpu", "to two ranks", 2)


def nccl_sends(place: Place) -> list[Number]:
    """The same by NCCL from a GPU to another, as to the ranks of a server beside the trainer."""
    return _sent(_weights(place, place.device), place.device, "by NCCL")


def _weights(place: Place, held: str) -> dict[str, Tensor]:
    model = build(TINY if place.small else QWEN3["1.7B"], torch.bfloat16, place.device)
    return {name: each.detach().to(held) for name, each in model.named_parameters()}


def _sent(weights: Mapping[str, Tensor], device: str, title: str, ranks: int = 1) -> list[Number]:
    total = sum(each.nbytes for each in weights.values())
    seconds, bare, same = trio.run(_timed, weights, device, ranks)
    return [
        Number(title, total / 1e9 / seconds, "GB/s"),
        Number(f"{title}, of a bare broadcast", bare / seconds),
        Number(f"{title}: bytes equal", float(same), least=1.0),
    ]


async def _timed(
    weights: Mapping[str, Tensor], device: str, ranks: int
) -> tuple[float, float, bool]:
    """Seconds of a send of all buckets, and of a bare broadcast of as many bytes; and whether each
    rank has the same bytes."""
    where = torch.device("cuda:0" if device == "cuda" else "cpu")
    async with ServerGroup.open(HOST, ranks, bucket_bytes=BUCKET, device=where) as group:
        stream, expected = group.stream(weights), hashlib.blake2b()
        sizes = [bucket.total_bytes for bucket in stream.buckets]
        for name in (name for bucket in stream.buckets for name in bucket.names):
            flat = weights[name].contiguous().view(-1).view(torch.uint8)
            expected.update(flat.cpu().numpy().data)
        store = f"tcp:{HOST}:{group.port}", group.name
        with ExitStack() as stack:
            others = [
                stack.enter_context(peer(_server, *store, rank + 1, ranks + 1, sizes, device))
                for rank in range(ranks)
            ]
            await group.join(DEADLINE_S)
            start = time.perf_counter()
            for _ in sizes:
                await stream.send(DEADLINE_S)
            _settle(device)
            seconds = time.perf_counter() - start
            bare = await trio.to_thread.run_sync(_bare, group, sizes, device)
            received = [await trio.to_thread.run_sync(other.said) for other in others]
    return seconds, bare, set(received) == {expected.hexdigest()}


def _bare(group: ServerGroup, sizes: list[int], device: str) -> float:
    """Seconds of broadcasts of buffers of these sizes."""
    collective = group._group
    assert collective is not None
    buffers = [torch.zeros(size, dtype=torch.uint8, device=group._device) for size in sizes]
    start = time.perf_counter()
    for buffer in buffers:
        collective.broadcast(buffer, 0, LIMIT).wait()
    _settle(device)
    return time.perf_counter() - start


def _server(store: str, name: str, rank: int, world: int, sizes: list[int], device: str) -> str:
    """The digest of what a rank of a server receives; then it takes a bare broadcast."""
    if device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    own = PrefixStore(name, open_store(store, LIMIT))
    group = connect_group(
        PrefixStore(f"{device}/", PrefixStore(f"{name}/", own)),
        rank,
        world,
        address=HOST,
        device=torch.device(device),
        timeout=LIMIT,
    )
    digest = hashlib.blake2b()
    for size in sizes:
        flat = torch.empty(size, dtype=torch.uint8, device=device)
        group.broadcast(flat, 0, LIMIT).wait()
        digest.update(flat.cpu().numpy().data)
    for size in sizes:
        flat = torch.empty(size, dtype=torch.uint8, device=device)
        group.broadcast(flat, 0, LIMIT).wait()
    _settle(device)
    return digest.hexdigest()


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def hashes(place: Place) -> list[Number]:
    """Bytes a second of the hashes of a large tensor, in host memory and on the device, against the
    slowest that a publication's deadline allows for; and the seconds of a model's."""
    found = []
    size = 2**22 if place.small else 2**30
    for device in dict.fromkeys(("cpu", place.device)):
        data = torch.ones(size // (8 if device == "cpu" else 1), dtype=torch.uint8, device=device)
        of_gpu([data])
        start = time.perf_counter()
        of_gpu([data])
        rate = data.numel() / (time.perf_counter() - start)
        title = "in host memory" if device == "cpu" else "on the device"
        least = None if place.small else SLOWEST / 1e9
        found.append(Number(title, rate / 1e9, "GB/s", least=least))
        found.append(Number(f"{title}: 8B", OF_8B / rate, "s"))
    return [*found, Number("sizes", float(size), "bytes", least=1.0)]
