"""The heart alone: streamed tokens a second on one core through journal and state, and whether
memory stays flat.

Groups live a whole life - admitted, leased, streamed in chunks of 32 tokens, sealed, judged, taken,
trained, published - each event applied to the state and appended to a journal on disk. The target
is 1 million tokens/s, with memory flat over 20 million. The limit is the same bytes in bare SQLite
inserts, without events, state or decoding; its rate is measured in the same run, on the same disk.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import trio

from asyncrl import journal
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience, fold
from asyncrl.messages import Scored

TARGET = 1e6
CHUNK, RESPONSE, GROUP, LIVE_GROUPS, STEP_GROUPS, FRAME = 32, 512, 8, 48, 16, 64
IDS, BEHAVIOUR = bytes(range(4 * CHUNK)), bytes(range(4 * CHUNK))


class Run:
    """A coordinator's part: decides what happens next, by the views of the state."""

    def __init__(self) -> None:
        self.experience = Experience()

    def life(self) -> Iterator[e.AnyEvent]:
        """Events without end; each is applied before the next is asked for."""
        x = self.experience
        version, leased = 0, deque[int]()
        yield e.Published(version)
        while True:
            while x.groups_live < LIVE_GROUPS:
                yield e.Admitted(
                    x.next_group,
                    x.next_rollout,
                    GROUP,
                    "train",
                    x.prompts["train"],
                    bytes(4 * 64),
                    RESPONSE,
                )
            for rollout in x.to_lease("train", LIVE_GROUPS * GROUP):
                yield e.Leased(rollout.id, "rollout-0", rollout.attempt + 1)
                leased.append(rollout.id)
            for _ in range(len(leased)):
                number = leased.popleft()
                held = x.rollouts[number]
                yield e.Extended(number, held.attempt, version, held.tokens, IDS, BEHAVIOUR)
                if held.remaining:
                    leased.append(number)
                else:
                    yield e.Sealed(number, held.attempt, "length")
            for rollout in x.to_judge():
                yield e.Judged(rollout.id, Scored(rollout.id % 2))
            while len(groups := x.ready()[:STEP_GROUPS]) == STEP_GROUPS:
                yield e.Taken(version, [member.id for group in groups for member in group.scored])
                for rollout in x.taken():
                    yield e.Trained(rollout.id, rollout.tokens - 3, {"stale": 3})
                version += 1
                yield e.Published(version)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def stream(
    path: Path, millions: int
) -> tuple[float, list[float], Run, journal.JournalStatistics]:
    """Seconds for so many million tokens, resident MiB at each million, and what there is at the
    end."""
    run = Run()
    memory: list[float] = []
    experience = run.experience
    async with journal.Journal.open(path) as log:
        began = time.perf_counter()
        frame = 0
        for event in run.life():
            experience.apply(event)
            log.append(event)
            frame += 1
            if frame == FRAME:
                frame = 0
                await log.room()
            if experience.ledger.tokens.total >= (len(memory) + 1) * 1_000_000:
                memory.append(resident_mib())
                print(
                    f"{len(memory):>4} million tokens   {time.perf_counter() - began:>7.2f} s   "
                    f"{memory[-1]:>7.1f} MiB resident",
                    flush=True,
                )
                if len(memory) == millions:
                    break
        await log.flush()
        return time.perf_counter() - began, memory, run, log.statistics()


def state_alone(tokens: int) -> float:
    """Seconds to make and apply the events of so many tokens, without a journal."""
    run = Run()
    experience = run.experience
    began = time.perf_counter()
    for event in run.life():
        experience.apply(event)
        if experience.ledger.tokens.total >= tokens:
            break
    return time.perf_counter() - began


def bare_sqlite(path: Path, total: int, row: int) -> float:
    """Seconds to insert `total` bytes in rows of `row`, a commit each."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("CREATE TABLE events (first INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        data = os.urandom(row)
        began = time.perf_counter()
        for first in range(0, total, row):
            connection.execute("INSERT INTO events VALUES (?, ?)", (first, data))
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=20, help="million tokens to stream")
    parser.add_argument(
        "--dir", default=None, help="where the journal goes; default: the temporary directory"
    )
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tokens = arguments.millions * 1_000_000
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        path = Path(folder, "journal.sqlite")
        seconds, memory, run, wrote = trio.run(stream, path, arguments.millions)
        bare = bare_sqlite(
            Path(folder, "bare.sqlite"), wrote.bytes, max(1, wrote.bytes // wrote.commits)
        )
        pure = state_alone(tokens // 4) * 4
        began = time.perf_counter()
        same = fold(event for _, event in journal.read(path)) == run.experience
        folded = time.perf_counter() - began
    early = memory[min(1, len(memory) - 1)]
    size = (
        f"{wrote.bytes / 2**20:.0f} MiB in {wrote.commits} commits, slowest "
        f"{wrote.slowest_s * 1e3:.0f} ms"
    )
    print(f"\n{wrote.appended} events, {size}; one core")
    print(f"{'':<34}{'tokens/s':>14}{'seconds':>10}")
    for name, took in (
        ("journal and state", seconds),
        ("state alone", pure),
        ("fold of the journal", folded),
        ("bare SQLite, same bytes", bare),
    ):
        print(f"{name:<34}{tokens / took:>14,.0f}{took:>10.2f}")
    print(f"\nratio to the target of 1 million/s: {tokens / seconds / TARGET:.2f}")
    print(f"ratio to bare SQLite:               {bare / seconds:.2f}")
    print(f"memory, last over second million:   {memory[-1] / early:.3f}")
    print(
        f"fold(journal) is the state: {same}; the ledger balances: "
        f"{run.experience.ledger.balances()}"
    )


if __name__ == "__main__":
    main()
