"""Cost of the journal: time beside a run of 100,000 tokens/s, bytes for each token, seconds to
resume, and a state kept at a checkpoint.

Groups live a whole life - admitted, leased, streamed in chunks of 8 tokens, 64 of them in a frame,
sealed, judged, taken, trained, published - and each event goes through the book: applied to the
state, appended to a journal on disk. The peer is the same stream, paced the same, with a log that
forgets; pairs of the two are repeated, and medians given. CPU is that of both threads, the loop's
that of the thread which every link of the coordinator waits for; both in percent of the time that
the run takes.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio

from asyncrl.actors.coordinator.event_store import EventLog, EventStore
from asyncrl.actors.coordinator.resume import resumed
from asyncrl.experience import events as e
from asyncrl.experience.call import TOKEN_BYTES
from asyncrl.experience.experience import Experience
from asyncrl.journal import Journal, SqliteHistory
from asyncrl.messages import Scored

RATE = 100_000
CHUNK, FRAME, LONGEST = 8, 64, 512
GROUP, LIVE_GROUPS, STEP_GROUPS = 8, 48, 16
TOKENS = random.Random(0).randbytes(4 * CHUNK)
AIM_S = 20.0


class Forgets:
    """A log that keeps nothing."""

    appended = 0

    def append(self, event: e.AnyEvent) -> int:
        return 0

    def keep(self, version: int, experience: Experience) -> int:
        return 0

    def compact(self, version: int) -> None: ...

    async def room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def flush(self) -> None: ...


@asynccontextmanager
async def forgets() -> AsyncIterator[EventLog]:
    yield Forgets()


def frames(store: EventStore) -> Iterator[None]:
    """A run without end: each step books one frame of chunks, and what follows from it. Responses
    are of 64 to 512 tokens."""
    x, lengths, version = store.experience, random.Random(1), 0
    ends: dict[int, int] = {}
    store.record(e.Published(version))
    chunks = 0
    while True:
        while x.groups_live < LIVE_GROUPS:
            store.record(
                e.Admitted(
                    x.next_group,
                    x.next_rollout,
                    GROUP,
                    "train",
                    x.prompts["train"],
                    bytes(4 * 64),
                    LONGEST,
                )
            )
        for rollout in x.to_lease("train", LIVE_GROUPS * GROUP):
            store.record(e.Leased(rollout.id, "rollout-0", rollout.attempt + 1))
            ends[rollout.id] = lengths.randrange(64, LONGEST + 1, CHUNK)
        for number in list(ends):
            held = x.rollouts[number]
            store.record(e.Extended(number, held.attempt, version, held.tokens, TOKENS, TOKENS))
            if held.tokens >= ends[number]:
                del ends[number]
                store.record(e.Sealed(number, held.attempt, "stop"))
            chunks += 1
            if chunks == FRAME:
                chunks = 0
                yield
        for rollout in x.to_judge():
            store.record(e.Judged(rollout.id, Scored(rollout.id % 2)))
        while len(groups := x.ready()[:STEP_GROUPS]) == STEP_GROUPS:
            store.record(
                e.Taken(version, [member.id for group in groups for member in group.scored])
            )
            for rollout in x.taken():
                store.record(e.Trained(rollout.id, rollout.tokens, {}))
            version += 1
            store.record(e.Published(version))


async def paced(
    log: AbstractAsyncContextManager[EventLog], seconds: float
) -> tuple[float, float, int]:
    """CPU of the process and of the loop's thread, each in percent of the time, and tokens."""
    async with log as inner:
        store = EventStore(Experience(), inner)
        total = store.experience.ledger.tokens
        run = frames(store)
        cpu, loop, began = time.process_time(), time.thread_time(), time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            while total.total < now * RATE:
                next(run)
                await inner.room()
            await trio.sleep(FRAME * CHUNK / RATE)
        took = time.perf_counter() - began
        percent = (
            100 * (time.process_time() - cpu) / took,
            100 * (time.thread_time() - loop) / took,
            total.total,
        )
        if total.total < 0.95 * RATE * took:
            print(f"the pace was not kept: {total.total / took:,.0f} tokens/s")
        return percent


def cost(folder: Path, seconds: float, pairs: int) -> None:
    print(
        f"at {RATE:,} tokens/s, in percent of {seconds:g} s; median (least-most) of {pairs} pairs"
    )
    print(f"{'journal_ms':>10}{'CPU, with':>11}{'without':>9}{'journal':>24}{'loop, journal':>24}")
    for commit_ms in (0, 100, 2000):
        withs, withouts = [], []
        for pair in range(pairs):
            path = folder / f"{commit_ms}-{pair}.sqlite"
            withs.append(trio.run(paced, Journal.open(path, commit_ms=commit_ms), seconds))
            withouts.append(trio.run(paced, forgets(), seconds))
            path.unlink()
        both = [
            [a[kind] - b[kind] for a, b in zip(withs, withouts, strict=True)] for kind in (0, 1)
        ]
        extra, loop = (f"{statistics.median(d):.2f} ({min(d):.2f}-{max(d):.2f})" for d in both)
        own, other = (statistics.median(cpu for cpu, _, _ in runs) for runs in (withs, withouts))
        print(f"{commit_ms:>10}{own:>11.2f}{other:>9.2f}{extra:>24}{loop:>24}", flush=True)


async def written(path: Path, millions: int) -> tuple[int, float]:
    """A journal of so many million tokens since its last state kept; bytes that it was given, and
    tokens."""
    async with Journal.open(path) as log:
        store = EventStore(Experience(), log)
        store.keep(0)
        total = store.experience.ledger.tokens
        for _ in frames(store):
            await log.room()
            if total.total >= millions * 1_000_000:
                break
        await log.flush()
        return log.statistics().bytes, total.total


def resume(folder: Path, millions: int) -> None:
    path = folder / "resume.sqlite"
    given, tokens = trio.run(written, path, millions)
    size = path.stat().st_size
    print(
        f"\nbytes a token: {given / tokens:.2f} given, {size / tokens:.2f} on disk; payload is "
        f"{TOKEN_BYTES / (size / tokens):.0%} of that"
    )
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    said = subprocess.run(
        [sys.executable, __file__, "--resume", path], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    seconds, cpu = map(float, said.split())
    print(
        f"resumed {tokens:,} tokens in {seconds:.2f} s ({cpu:.2f} s CPU), in a new process and "
        "from a file not cached:",
        end=" ",
    )
    print(f"{seconds / AIM_S:.2f} of the aim")


async def kept(path: Path, rollouts: int, tokens: int) -> tuple[float, float, int]:
    """Seconds that the loop stands still for a state of that size, seconds until it is on disk, and
    its bytes."""
    async with Journal.open(path) as log:
        store = EventStore(Experience(), log)
        store.record(e.Published(0))
        for number in range(rollouts):
            store.record(e.Admitted(number, number, 1, "train", number, bytes(4 * 64), tokens))
            store.record(e.Leased(number, "rollout-0", 1))
            for start in range(0, tokens, CHUNK):
                store.record(e.Extended(number, 1, 0, start, TOKENS, TOKENS))
            await log.room()
        await log.flush()
        before = log.statistics().bytes
        began = time.perf_counter()
        store.keep(0)
        stood = time.perf_counter() - began
        await log.flush()
        return stood, time.perf_counter() - began, log.statistics().bytes - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each paced run")
    parser.add_argument(
        "--pairs", type=int, default=5, help="with a journal and without, for each journal_ms"
    )
    parser.add_argument("--millions", type=int, default=10, help="million tokens to resume")
    parser.add_argument(
        "--dir", default=None, help="where the journal goes; default: the temporary directory"
    )
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.resume:
        cpu, began = time.process_time(), time.perf_counter()
        resumed(SqliteHistory(arguments.resume), [])
        print(time.perf_counter() - began, time.process_time() - cpu)
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        folder = Path(name)
        resume(folder, arguments.millions)
        stood, took, size = trio.run(kept, folder / "kept.sqlite", 8_000, 1_000)
        print(
            f"a state of 8,000 rollouts of 1,000 tokens, {size / 2**20:.0f} MiB: "
            f"the loop stands {stood * 1e3:.0f} ms, on disk after {took * 1e3:.0f} ms\n"
        )
        cost(folder, arguments.seconds, arguments.pairs)


if __name__ == "__main__":
    main()
