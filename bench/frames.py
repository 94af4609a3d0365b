"""Malformed frames: is each refused and counted, does anything leak, and what do good peers notice?

The bulk, a million, goes through the receiver itself, `Link` over a pipe in memory, one link for
each frame. The rest comes over real sockets from a process of its own, one connection for each
frame, as the first bad one closes it: from peers that prove the key and then break the rules, and
from peers that have none. A server takes such connections in no faster than `endpoints.REFUSAL_S`
lets it.

Beside it a good peer sends a request and waits for its reply, on another link of the same server:
with the flood and without it by turns; each row is one repetition, the last line the median of its
ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import random
import statistics
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec
import trio

from asyncrl import messages
from asyncrl.messages.address import UnixAddress
from asyncrl.runtime.ipc.endpoints import connect, serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.keys import new_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.pipes import Bytes

ASKING = messages.CloseStep(7)
GOOD = [
    msgspec.msgpack.encode(message)
    for message in (
        messages.ScoreResult(3, messages.Scored(1.0), 0.1),
        messages.Chunks([messages.ChunkHead(7, 0, 3, 0, 4, "stop")]),
        messages.Report(
            1.0, {"weights": 0.5}, {"tokens": 1.0}, [messages.Wait("verdict", "item 3", 1.0, 5.0)]
        ),
    )
]
MAX_FRAME = 2**22


def framed(text: bytes, body: bytes = b"") -> bytes:
    """A frame around a message and one buffer."""
    return struct.pack("<IIII", 4 + len(text) + len(body), len(text), 1, len(body)) + text + body


KINDS: dict[str, tuple[str, Callable[[random.Random, bytes], bytes]]] = {
    "a frame too large": (
        "oversized",
        lambda draw, text: (
            struct.pack("<III", draw.randrange(MAX_FRAME, 2**32), len(text), 0) + text
        ),
    ),
    "a message too large": (
        "oversized",
        lambda draw, text: struct.pack("<III", 2**20, draw.randrange(2**22 + 1, 2**32), 0) + text,
    ),
    "too many buffers": (
        "oversized",
        lambda draw, text: struct.pack("<III", 2**20, len(text), draw.randrange(9, 2**32)) + text,
    ),
    "a message over its frame": (
        "malformed",
        lambda draw, text: struct.pack("<III", len(text) - 1, len(text), 0) + text,
    ),
    "parts that do not add up": (
        "malformed",
        lambda draw, text: framed(text)[:12] + struct.pack("<I", draw.randrange(1, 2**32)) + text,
    ),
    "a tag of nobody": ("malformed", lambda draw, text: framed(b"\x91\xa5Nobod")),
    "a message cut short": (
        "malformed",
        lambda draw, text: framed(text[: draw.randrange(1, len(text))]),
    ),
    "a message and more": ("malformed", lambda draw, text: framed(text + b"\xc0")),
    "another type": (
        "malformed",
        lambda draw, text: framed(text[:1] + b"\xa6Judged" + b"\xc4\x01\x00" * 9),
    ),
    "no UTF-8": ("malformed", lambda draw, text: framed(b"\x93\xa5Saved\x01\xa2\xff\xfe")),
    "brackets without an end": (
        "malformed",
        lambda draw, text: framed(b"\x92\xa5Drain" + b"\x91" * 2000),
    ),
    "random bytes for a message": (
        "malformed",
        lambda draw, text: framed(b"\xc1" + draw.randbytes(draw.randrange(40))),
    ),
    "an end inside a frame": (
        "broken",
        lambda draw, text: framed(text, bytes(8))[: draw.randrange(1, 16 + len(text))],
    ),
}
NAMES = list(KINDS)


def malformed(number: int) -> tuple[str, bytes]:
    """The reason for which frame `number` is refused, and its bytes."""
    draw = random.Random(number)
    reason, make = KINDS[NAMES[number % len(NAMES)]]
    return reason, make(draw, GOOD[number % len(GOOD)])


class Said:
    """A pipe whose peer said this, and ended."""

    torn = False
    blocked_s = 0.0

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def send(self, parts: Sequence[Bytes]) -> None: ...

    async def receive_into(self, view: memoryview) -> int:
        size = min(len(view), len(self._data))
        view[:size] = self._data[:size]
        self._data = self._data[size:]
        return size

    async def aclose(self) -> None: ...


async def in_memory(numbers: range) -> Counter[str]:
    """Reasons for which frames were refused; raises where one was not, or for something else."""
    refused: Counter[str] = Counter()
    for number in numbers:
        if not number % 1000:
            await (
                trio.lowlevel.checkpoint()
            )  # as a server's links do: the loop forgets deadlines that were not needed
        expected, data = malformed(number)
        try:
            await Link(Said(data), peer="the peer", max_frame=MAX_FRAME).receive()
        except (LinkError, EndOfStream) as error:
            reason = error.reason if isinstance(error, LinkError) else "end"
            if reason != expected:
                raise AssertionError(
                    f"frame {number} ({NAMES[number % len(NAMES)]}) was refused as {reason}, not "
                    f"{expected}"
                ) from error
            refused[reason] += 1
        else:
            raise AssertionError(f"frame {number} ({NAMES[number % len(NAMES)]}) was taken")
    return refused


# ----------------------------------------------------------------------------------------- sockets


async def flood(address: UnixAddress, key: bytes, numbers: Iterator[int], on: Event) -> None:
    """Bad connections one after another for as long as `on` is set: two with the key for each one
    without."""
    for number in numbers:
        if not on.is_set():
            return
        try:
            if number % 3:
                link = await connect(address, key, max_frame=MAX_FRAME)
                await link._pipe.send([malformed(number)[1]])
                if malformed(number)[0] != "broken":
                    await until_closed(link)
                await link.aclose()
            else:
                stream = await trio.open_unix_socket(str(address.path))
                async with stream:
                    await stream.send_all(malformed(number)[1].ljust(64, b"\0"))
                    while await stream.receive_some():
                        pass
        except (LinkError, OSError, trio.BrokenResourceError):
            pass  # refused before it had said all


async def until_closed(link: Link) -> None:
    with contextlib.suppress(EndOfStream):
        await link.receive()


def flooder(path: str, key: bytes, on: Event, off: Event, end: Event, at_once: int) -> None:
    async def main() -> None:
        start = 0
        while not end.is_set():
            on.wait(0.2)
            if on.is_set():
                off.clear()
                async with trio.open_nursery() as nursery:
                    for lane in range(at_once):
                        nursery.start_soon(
                            flood,
                            UnixAddress(Path(path)),
                            key,
                            iter(range(start + lane, 2**40, at_once)),
                            on,
                        )
                start += 10**6
                off.set()

    trio.run(main)


def asker(
    path: str,
    key: bytes,
    seconds: float,
    results: multiprocessing.Queue[list[float]],
    go: Event,
    end: Event,
) -> None:
    """Request and reply, two milliseconds apart, for `seconds` each time that it is told to go."""

    async def main() -> None:
        async with await connect(UnixAddress(Path(path)), key) as link:
            while not end.is_set():
                if not go.wait(0.2):
                    continue
                go.clear()
                took = []
                until = time.perf_counter() + seconds
                while time.perf_counter() < until:
                    since = time.perf_counter()
                    await link.send(ASKING)
                    await link.receive()
                    took.append(time.perf_counter() - since)
                    await trio.sleep(0.002)
                results.put(took)

    trio.run(main)


def resident() -> float:
    """MiB of this process's memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def echo(link: Link) -> None:
    async for message, buffers in link:
        await link.send(message, *buffers)


async def over_sockets(directory: Path, repetitions: int, seconds: float, at_once: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    key, refused = new_key(), Counter[str]()
    on, off, end, go = spawn.Event(), spawn.Event(), spawn.Event(), spawn.Event()
    off.set()
    results: multiprocessing.Queue[list[float]] = spawn.Queue()
    path = str(directory / "server")

    def count(reason: str) -> None:
        refused[reason] += 1

    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(serve, UnixAddress(Path(path)), key, echo, refused=count, max_frame=MAX_FRAME)
        )
        workers = [
            spawn.Process(target=flooder, args=(path, key, on, off, end, at_once)),
            spawn.Process(target=asker, args=(path, key, seconds, results, go, end)),
        ]
        for worker in workers:
            worker.start()

        async def asked() -> list[float]:
            go.set()
            return sorted(await trio.to_thread.run_sync(results.get))

        await asked()  # once for nothing
        on.set()
        await trio.sleep(1.0)
        on.clear()
        await trio.to_thread.run_sync(off.wait)
        await trio.sleep(0.5)
        before = resident(), descriptors(), len(nursery.child_tasks)
        refused.clear()
        medians, tails = [], []
        print(
            f"\n{'':12}{'alone: median':>16}{'p99':>10}{'flooded: median':>18}{'p99':>10}"
            f"{'ratios':>10}{'p99':>8}{'refused/s':>12}"
        )
        for repetition in range(repetitions):
            alone = await asked()
            on.set()
            await trio.sleep(0.3)
            at, since = refused.total(), time.perf_counter()
            flooded = await asked()
            rate = (refused.total() - at) / (time.perf_counter() - since)
            on.clear()
            await trio.to_thread.run_sync(off.wait)
            figures = [
                statistics.median(alone),
                alone[len(alone) * 99 // 100],
                statistics.median(flooded),
                flooded[len(flooded) * 99 // 100],
            ]
            medians.append(figures[2] / figures[0])
            tails.append(figures[3] / figures[1])
            micro = [figure * 1e6 for figure in figures]
            print(
                f"{repetition + 1:>10}  {micro[0]:>13,.0f} µs{micro[1]:>7,.0f} "
                f"µs{micro[2]:>15,.0f} µs{micro[3]:>7,.0f} µs"
                f"{medians[-1]:>10.2f}{tails[-1]:>8.2f}{rate:>12,.0f}",
                flush=True,
            )
        print(
            f"{'median of ratios':>66}{statistics.median(medians):>12.2f}"
            f"{statistics.median(tails):>8.2f}"
        )
        await trio.sleep(0.5)
        after = resident(), descriptors(), len(nursery.child_tasks)
        print(f"over sockets: {refused.total():,} refused: {dict(sorted(refused.items()))}")
        print(
            f"memory {before[0]:.1f} -> {after[0]:.1f} MiB, descriptors {before[1]} -> "
            f"{after[1]}, tasks {before[2]} -> {after[2]}"
        )
        end.set()
        for worker in workers:
            await trio.to_thread.run_sync(worker.join)
        nursery.cancel_scope.cancel()


async def bulk(count: int) -> None:
    await in_memory(range(10_000))
    memory, files, since = resident(), descriptors(), time.perf_counter()
    refused: Counter[str] = Counter()
    for start in range(0, count, 50_000):
        refused += await in_memory(range(start, min(start + 50_000, count)))
    took = time.perf_counter() - since
    print(
        f"in memory: {refused.total():,} of {count:,} refused, each for its reason: "
        f"{dict(sorted(refused.items()))}, {count / took:,.0f}/s"
    )
    print(f"memory {memory:.1f} -> {resident():.1f} MiB, descriptors {files} -> {descriptors()}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--frames", type=int, default=1_000_000, help="that go through a link in memory"
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of each measurement of the good peer"
    )
    parser.add_argument("--at-once", type=int, default=8, help="bad connections at a time")
    options = parser.parse_args()
    trio.run(bulk, options.frames)
    with tempfile.TemporaryDirectory() as directory:
        trio.run(
            over_sockets, Path(directory), options.repetitions, options.seconds, options.at_once
        )


if __name__ == "__main__":
    main()
