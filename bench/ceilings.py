"""The most tokens that one coordinator can take from engines, and what a token costs each process.

A run of real processes and links whose engines compute nothing: every slot gets its next
`chunk_tokens` tokens at the rate of `--rate` tokens/s an engine, drawn at random with random
log-probabilities. No group has a signal, so the trainer waits. A response has `--response` tokens.
Over `--seconds` each process's seconds of a core (user and system) are divided by the tokens that
the coordinator counted:

    coordinator    links, checks, state and journal, µs a token; its inverse is the ceiling of a run
    rollout        an actor's part: from its engine's chunks to the link
    µs/event       the coordinator's, for each event of the journal
    busy           the share of a core that the coordinator used
    MiB            memory of the coordinator at the end, with so many live tokens

    python bench/ceilings.py [--engines 8] [--slots 64] [--rate 2e4] [--chunks 0,8,64]
                             [--response 32768] [--seconds 20]

A chunk of 0 tokens is the run's own choice (`asyncrl/config/chunk_tokens.py`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import trio
from kill_matrix import Matrix, tiny

from asyncrl.config.engines import Capabilities
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Emit, Request
from asyncrl.engines.spec import EngineContext, EngineKind
from asyncrl.explain import run_status
from asyncrl.explain.run_status import RunStatus
from asyncrl.runtime.run_dir import STATUS

RATE = "CEILINGS_RATE"
START_S = 240.0
TICK = os.sysconf("SC_CLK_TCK")


class FlatEngine(EngineKind):
    """An engine that decodes all slots side by side at RATE tokens/s in all, and computes
    nothing."""

    capabilities = Capabilities(keeps_versions=True)

    @classmethod
    @asynccontextmanager
    async def open(cls, context: EngineContext) -> AsyncIterator[FlatEngine]:
        yield cls(EngineOptions.of(context.config), float(os.environ[RATE]))

    def __init__(self, options: EngineOptions, rate: float) -> None:
        self._options, self._rate = options, rate
        self._version: int | None = None
        self._requests: dict[int, Request] = {}
        self._done: dict[int, int] = {}
        self._ended: list[Chunk] = []
        self._news = trio.Event()
        draw = np.random.default_rng(0)
        longest = options.chunk_tokens
        self._ids = draw.integers(10, 50, longest, np.int32)
        self._behaviour = -draw.random(longest, np.float32)

    @property
    def slots(self) -> int:
        return self._options.slots

    @property
    def version(self) -> int | None:
        return self._version

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._requests[request.rollout], self._done[request.rollout] = request, 0
        self._news.set()

    def interrupt(self, rollouts: Sequence[int]) -> None:
        for rollout in rollouts:
            if rollout in self._requests:
                self._ended.append(self._chunk(rollout, 0, "interrupted"))
        self._news.set()

    async def load(
        self, version: int, weights: Mapping[str, object] | None, *, pin: bool = False
    ) -> float:
        await trio.lowlevel.checkpoint()
        self._version = version
        self._news.set()
        return 0.0

    def unpin(self, version: int) -> None:
        pass

    async def run(self, emit: Emit) -> None:
        while True:
            began = trio.current_time()
            self._news = trio.Event()
            chunks = self._advance()
            if not chunks:
                await self._news.wait()
                continue
            await emit(chunks)
            count = sum(len(chunk.ids) for chunk in chunks)
            await trio.sleep_until(began + count / self._rate)

    def _advance(self) -> list[Chunk]:
        if self._version is not None:
            for rollout in list(self._requests)[: self.slots]:
                left = self._requests[rollout].max_new_tokens - self._done[rollout]
                count = min(left, self._options.chunk_tokens)
                self._ended.append(self._chunk(rollout, count, "length" if count == left else ""))
        chunks, self._ended = self._ended, []
        return chunks

    def _chunk(self, rollout: int, count: int, finish: str) -> Chunk:
        request, done = self._requests[rollout], self._done[rollout]
        self._done[rollout] = done + count
        if finish:
            del self._requests[rollout], self._done[rollout]
        version = request.version if request.version is not None else self._version or 0
        start = request.prefix_tokens + done
        return Chunk(
            rollout,
            request.attempt,
            version,
            start,
            self._ids[:count],
            self._behaviour[:count],
            finish,
        )


class Ceiling(NamedTuple):
    """A measured run: what came, and what it cost, in the units of the table."""

    chunk: int
    tokens_per_s: float
    coordinator_us: float
    event_us: float
    rollout_us: float
    busy: float
    live: int
    memory_mib: float


def measured(chunk: int, args: argparse.Namespace, folder: Path, model: Path) -> Ceiling:
    """Start a run, measure it for `args.seconds`, and end it."""
    settings: dict[str, object] = {
        "engine.kind": '"ceilings:FlatEngine"',
        "engine.slots": args.slots,
        "engine.chunk_tokens": chunk,
        "engine.context_tokens": args.response + 256,
        "task.eval_size": 0,
        "train.batch_groups": max(1, args.engines * args.slots // 16),
        "train.eval_every": 0,
        "train.micro_tokens": args.response + 256,
        "train.checkpoint_every": 0,
        "rollout.actors": args.engines,
        "rollout.group_size": 8,
        "rollout.max_new_tokens": args.response,
        "rollout.filter": '"zero_variance"',
        "rollout.filter_patience": 10**9,
        "rollout.accept_floor": 0.0,
        "journal.commit_ms": 100,
        "machine.cores": len(os.sched_getaffinity(0)),
        "supervision.stall_s": 600.0,
    }
    run = folder / "run"
    matrix = Matrix(run, model, 0, settings)
    here = str(Path(__file__).parent)
    matrix.environment = {
        RATE: str(args.rate),
        "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH")))),
    }
    try:
        matrix.start()
        wait(matrix, args.engines * args.slots * args.warm)
        pids = matrix.processes()
        first, before = look(run, pids)
        time.sleep(args.seconds)
        last, after = look(run, pids)
        memory = resident_mib(pids["coordinator", "0"])
    finally:
        matrix.close()
    tokens = last.tokens.generated - first.tokens.generated
    events = last.journal.appended - first.journal.appended
    if not tokens:
        raise SystemExit(
            f"no tokens came in {args.seconds:g} s: a chunk of each slot takes longer at "
            f"{args.rate:g} tokens/s; raise --seconds"
        )
    spent = {role: after[role] - before[role] for role in after}
    return Ceiling(
        chunk,
        tokens / (last.at - first.at),
        1e6 * spent["coordinator"] / tokens,
        1e6 * spent["coordinator"] / events,
        1e6 * spent["rollout"] / tokens,
        spent["coordinator"] / (last.at - first.at),
        last.tokens.live,
        memory,
    )


def wait(matrix: Matrix, tokens: int) -> None:
    """Wait until so many tokens were generated."""
    end = time.monotonic() + START_S
    while True:
        assert matrix.process is not None
        with suppress(OSError, msgspec.DecodeError):
            if run_status.read(matrix.run / STATUS).tokens.generated >= tokens:
                return
        if matrix.process.poll() is not None or time.monotonic() > end:
            raise SystemExit((matrix.run.parent / "launcher.log").read_text())
        time.sleep(0.2)


def look(run: Path, pids: Mapping[tuple[str, str], int]) -> tuple[RunStatus, dict[str, float]]:
    """The run's next status, and the seconds of cores that each role has used by then."""
    before = run_status.read(run / STATUS).at
    while (status := run_status.read(run / STATUS)).at == before:
        time.sleep(0.02)
    spent: dict[str, float] = defaultdict(float)
    for (role, _), pid in pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent[role] += (int(fields[11]) + int(fields[12])) / TICK
    return status, spent


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2e4, help="tokens/s of an engine")
    parser.add_argument("--chunks", default="8,0,64", help="tokens of a chunk; 0: by default")
    parser.add_argument("--response", type=int, default=32768)
    parser.add_argument("--warm", type=int, default=64, help="tokens of a slot before measuring")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    print(
        f"{args.engines} engines of {args.slots} slots, {args.rate:,.0f} tokens/s each, responses "
        f"of {args.response:,} tokens"
    )
    print(
        f"{'chunk':>5} {'tokens/s':>10} {'of asked':>9} {'coordinator µs':>15} {'µs/event':>9} "
        f"{'rollout µs':>11} {'busy':>6} {'ceiling tokens/s':>17} {'MiB':>6} {'live tokens':>12}"
    )
    with tempfile.TemporaryDirectory() as name:
        model = tiny(Path(name, "model"))
        for chunk in map(int, args.chunks.split(",")):
            folder = Path(name, f"of_{chunk}")
            folder.mkdir()
            found = measured(chunk, args, folder, model)
            print(
                f"{found.chunk:>5} {found.tokens_per_s:>10,.0f} "
                f"{found.tokens_per_s / args.engines / args.rate:>9.2f} "
                f"{found.coordinator_us:>15.2f} {found.event_us:>9.1f} {found.rollout_us:>11.2f} "
                f"{found.busy:>6.2f} {1e6 / found.coordinator_us:>17,.0f} "
                f"{found.memory_mib:>6.0f} {found.live:>12,}",
                flush=True,
            )


if __name__ == "__main__":
    main()
