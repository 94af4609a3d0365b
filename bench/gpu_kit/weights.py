"""Weights on their way out of a device: copies and checksums, a publication beside training, gloo
into the device, and memory of the device that two processes share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import trio
from torch import Tensor
from torch.distributed import FileStore

from asyncrl.config.schema import StalenessConfig
from asyncrl.training.learner import Learner
from asyncrl.training.models import parameters_for_publication
from asyncrl.weightsync.broadcast import GroupReceiver, GroupSender
from asyncrl.weightsync.buckets import Plan
from asyncrl.weightsync.checksum import checksum
from asyncrl.weightsync.process_group import connect_group
from asyncrl.weightsync.servers import server_hashes

from .check import Number, Place
from .peers import peer
from .shapes import MIDDLE, TINY, again, build, settings, work

HOST = "127.0.0.1"
DEADLINE_S = 120.0
BUCKET = 32 * 2**20
STEPS, PUBLICATIONS = 5, 3


def copies(place: Place) -> list[Number]:
    """Speeds out of the device, and that checksums and SGLang's hash are those of a processor."""
    size = 2**22 if place.small else 2**30
    data = torch.arange(size // 8, device=place.device).mul_(0x9E3779B97F4A7C15 - 2**64)
    data = data.view(torch.uint8)
    host = torch.empty(size, dtype=torch.uint8)
    pageable = _seconds(place, lambda: host.copy_(data))
    gb = size / 1e9
    found = [Number("pageable", gb / pageable, "GB/s")]
    if place.device == "cuda":
        pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        seconds = _seconds(place, lambda: pinned.copy_(data, non_blocking=True))
        found.append(Number("pinned", gb / seconds, "GB/s"))
        found.append(Number("pinned over pageable", pageable / seconds, least=1.0))
    part = data[: min(size, 2**26)]
    gb = part.numel() / 1e9
    seconds = _seconds(place, lambda: checksum(part))
    found.append(Number("checksum", gb / seconds, "GB/s"))
    seconds = _seconds(place, lambda: server_hashes.of_gpu([part]))
    found.append(Number("SGLang's hash", gb / seconds, "GB/s"))
    copied = part.cpu()
    same = checksum(part) == checksum(copied)
    found.append(Number("checksums equal", float(same), least=1.0))
    same = server_hashes.of_gpu([part]) == server_hashes.of_gpu([copied])
    found.append(Number("hashes equal", float(same), least=1.0))
    found.append(Number("copies equal", float(torch.equal(host, data.cpu())), least=1.0))
    return found


def _seconds(place: Place, act: Callable[[], Any]) -> float:
    """Seconds of the second of two times: the first one touches the memory."""
    for _ in range(2):
        _settle(place.device)
        start = time.perf_counter()
        act()
        _settle(place.device)
        seconds = time.perf_counter() - start
    return seconds


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def publication(place: Place) -> list[Number]:
    """Seconds of a publication through host memory to another process, alone and beside steps, and
    how much longer steps take beside it."""
    shape, response = (TINY, 24) if place.small else (MIDDLE, 1024)
    model = build(shape, torch.bfloat16, place.device)
    learner = Learner(model, settings(place.device), StalenessConfig(), temperature=1.0)
    given = work(model, 8, response)
    weights = [(name, each.clone()) for name, each in parameters_for_publication(model)]
    plan = Plan.of(weights, BUCKET)

    def step() -> float:
        start = time.perf_counter()
        begun = again(given, learner.version)
        learner.accumulate(begun.batch, begun.buffers)
        learner.step()
        _settle(place.device)
        return time.perf_counter() - start

    step()  # kernels are compiled, and moments made
    step_alone = min(step() for _ in range(STEPS))
    done, steps = threading.Event(), list[float]()
    patience_s = place.patience(DEADLINE_S)

    def train() -> None:
        steps.append(step())
        while not done.is_set():
            steps.append(step())

    async def publish(sender: GroupSender) -> tuple[list[float], list[int]]:
        seconds = []
        for _ in range(PUBLICATIONS):
            start = time.perf_counter()
            sent = await sender.send(0, 2, plan, weights, patience_s)
            seconds.append(time.perf_counter() - start)
        return seconds, sent.checksums

    async def both() -> tuple[list[float], list[float], bool]:
        async with GroupSender.open(HOST, place.folder / "store") as sender:
            with peer(_receive, sender.store, 2 * PUBLICATIONS, plan, patience_s) as other:
                alone, _ = await publish(sender)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.to_thread.run_sync, train)
                    try:
                        beside, checksums = await publish(sender)
                    finally:
                        done.set()
                received = await trio.to_thread.run_sync(other.said)
        return alone, beside, received == checksums

    alone, beside, same = trio.run(both)
    return [
        Number("weights", plan.total_bytes / 1e6, "MB"),
        Number("publication alone", min(alone), "s"),
        Number("beside steps", min(beside), "s"),
        Number("a step alone", step_alone, "s"),
        # a small step's time is that of the threads beside it: it says nothing
        Number(
            "a step beside, times as long",
            sum(steps) / len(steps) / step_alone,
            most=None if place.small else 2.0,
        ),
        Number("checksums equal", float(same), least=1.0),
    ]


def _receive(store: str, times: int, plan: Plan, patience_s: float) -> list[int]:
    """Receive publications of one epoch; gives the last one's checksums."""

    async def receive() -> list[int]:
        async with GroupReceiver.open() as receiver:
            for _ in range(times):
                staged = await receiver.receive(store, 0, 1, 2, plan, patience_s)
        return staged.checksums

    return trio.run(receive)


def gloo(place: Place) -> list[Number]:
    """Bytes of a processor's tensor that another process receives into one on the device, as an
    SGLang server does."""
    size, store = (2**16 if place.small else 2**28), place.folder / "store"
    limit = timedelta(seconds=place.patience(DEADLINE_S))
    sent = torch.arange(size, dtype=torch.int64).mul_(2654435761).view(torch.uint8)
    with peer(_take, store, sent.numel(), place.device, limit) as other:
        group = _group(store, 0, limit)
        start = time.perf_counter()
        group.broadcast(sent, 0, limit).wait()
        received = other.said()
        seconds = time.perf_counter() - start
    return [
        Number("received", sent.numel() / 1e9 / seconds, "GB/s"),
        Number("checksums equal", float(received == checksum(sent)), least=1.0),
    ]


def _group(store: Path, rank: int, limit: timedelta) -> Any:
    return connect_group(
        FileStore(str(store), 2),
        rank,
        2,
        address=HOST,
        device=torch.device("cpu"),
        timeout=limit,
    )


def _take(store: Path, size: int, device: str, limit: timedelta) -> int:
    into = torch.zeros(size, dtype=torch.uint8, device=device)
    group: Any = _group(store, 1, limit)
    group.broadcast(into, 0, limit).wait()
    _settle(device)
    return checksum(into)


def shared(place: Place) -> list[Number]:
    """Memory of the device that another process opens, reads, and writes to."""
    size = 2**16 if place.small else 2**28
    tensor: Tensor = torch.arange(size, device=place.device, dtype=torch.int32)
    expected = checksum(tensor.view(torch.uint8))
    with peer(_open, _Handed(tensor), place.device) as other:
        start = time.perf_counter()
        found = other.said()
        seconds = time.perf_counter() - start
    seen = int(tensor[-1])
    return [
        Number("opened and read in", seconds, "s, with the process's start"),
        Number("checksums equal", float(found == expected), least=1.0),
        Number("what it wrote is seen here", float(seen == -1), least=1.0),
    ]


class _Handed:
    """A tensor that torch hands to another process by its memory's handle."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        from torch.multiprocessing.reductions import reduce_tensor

        rebuild, given = reduce_tensor(self.tensor)
        return _rebuilt, (rebuild, given)


def _rebuilt(rebuild: Any, given: Any) -> _Handed:
    return _Handed(rebuild(*given))


def _open(handed: _Handed, device: str) -> int:
    tensor = handed.tensor
    found = checksum(tensor.view(torch.uint8))
    tensor[-1] = -1
    _settle(device)
    return found
