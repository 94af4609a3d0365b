"""Starts of agents' programs, in virtual time: a machine with a few cores, and programs that need
a second of one before they call."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import some

from asyncrl.actors import start_limit
from asyncrl.actors.agent_starts import AgentStarts
from asyncrl.actors.coordinator.episode_placement import EpisodePlacement
from asyncrl.actors.start_limit import StartLimit
from asyncrl.messages import Report, StartCounts
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.machine import free_bytes
from asyncrl.runtime.processes.standstill import RunClock
from asyncrl.runtime.processes.usage import PAGE, Used, used_by

PLENTY = 2**40
TICK_S = 0.05


class Machine:
    """Cores that processes share fairly, in steps of `TICK_S`. `others` want a core all the
    time."""

    def __init__(self, cores: int, others: int = 0) -> None:
        self.cores, self.others = cores, others
        self.wanting: set[int] = set()
        self.cpu: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        self.load: list[int] = []
        self.tick = trio.Event()

    async def run(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self.load.append(len(self.wanting) + self.others)
            share = min(1.0, self.cores / max(1, self.load[-1]))
            for pid in self.wanting:
                self.cpu[pid] = self.cpu.get(pid, 0.0) + share * TICK_S
                self.waited[pid] = self.waited.get(pid, 0.0) + (1 - share) * TICK_S
            self.tick.set()
            self.tick = trio.Event()

    async def compute(self, pid: int, seconds: float) -> None:
        self.wanting.add(pid)
        until = self.cpu.get(pid, 0.0) + seconds
        try:
            while self.cpu.get(pid, 0.0) < until - 1e-9:
                await self.tick.wait()
        finally:
            self.wanting.discard(pid)

    def look(self, pid: int) -> Used:
        return Used(self.cpu.get(pid, 0.0), self.waited.get(pid, 0.0), 2**20, pid in self.wanting)


def opened(machine: Machine, free: Callable[[], int] = lambda: PLENTY) -> AgentStarts:
    return AgentStarts(StartLimit(machine.cores), Waits(), machine.look, free)


@pytest.mark.parametrize(("cores", "others"), [(1, 0), (2, 0), (2, 2), (2, 8), (8, 0), (8, 8)])
async def test_programs_do_not_flood_the_cores(
    autojump_clock: trio.testing.MockClock, cores: int, others: int
) -> None:
    """126 at once, a second of a core each before the first call: the load stays below four times
    the cores, beside others' work, the first calls come soon, and no core is left idle."""
    machine, called = Machine(cores, others), list[float]()
    starts = opened(machine)

    async def attempt(pid: int) -> None:
        async with starts.start(f"prompt {pid}") as start:
            start.pid = pid
            await machine.compute(pid, 1.0)
            start.called()
            called.append(trio.current_time())
            await trio.sleep(30.0)  # its calls are answered
            await machine.compute(pid, 0.05)

    began = trio.current_time()
    async with trio.open_nursery() as beside:
        beside.start_soon(machine.run)
        beside.start_soon(starts.run)
        async with trio.open_nursery() as nursery:
            for pid in range(126):
                nursery.start_soon(attempt, pid)
        beside.cancel_scope.cancel()
    own = max(load - others for load in machine.load)
    assert own <= 4 * cores
    assert min(called) - began <= 1.5 * (1 + max(0, others) / cores) + 1
    # what is left for as many starts as cores; for one, where others take all of them
    rate = cores * cores / (cores + others) if others <= cores else cores / (1 + others)
    assert max(called) - began <= 1.3 * 126 / rate + 2
    assert starts.counts.waiting == starts.counts.starting == 0


@pytest.mark.parametrize("world", some([(2, 4), (8, 16), (8, 0), (1, 0), (2, 0)]))
async def test_programs_at_work_keep_others_from_starting_but_not_for_long(
    autojump_clock: trio.testing.MockClock, world: tuple[int, int]
) -> None:
    """Each works for ten seconds of a core after its first call, and some without end."""
    cores, endless = world
    machine = Machine(cores)
    starts, begun = opened(machine), list[float]()

    async def attempt(pid: int) -> None:
        async with starts.start(f"prompt {pid}") as start:
            start.pid = pid
            begun.append(trio.current_time())
            await machine.compute(pid, 1.0)
            start.called()
            await machine.compute(pid, 10.0 if pid >= endless else 1e9)

    async with trio.open_nursery() as beside:
        beside.start_soon(machine.run)
        beside.start_soon(starts.run)
        for pid in range(20 * cores):
            beside.start_soon(attempt, pid)
        await trio.sleep(600.0)
        beside.cancel_scope.cancel()
    assert max(machine.load) <= (5 if endless else 4) * cores
    waits = [after - before for before, after in pairwise(begun)]
    assert max(waits) <= start_limit.HOLD_S + 1
    assert len(begun) >= min(20 * cores, endless + 600 // start_limit.HOLD_S)


async def test_the_bound_follows_the_load(autojump_clock: trio.testing.MockClock) -> None:
    """It grows where starts hardly wait for a core, and shrinks where others take the cores."""
    machine = Machine(cores=4)
    starts = opened(machine)
    bounds = list[int]()

    async def attempt(pid: int) -> None:
        async with starts.start(f"prompt {pid}") as start:
            start.pid = pid
            for _ in range(8):  # half of it waits for a disk
                await machine.compute(pid, 0.1)
                await trio.sleep(0.1)
            start.called()
            bounds.append(starts.counts.most)
            if len(bounds) == 60:
                machine.others = 40

    async with trio.open_nursery() as beside:
        beside.start_soon(machine.run)
        beside.start_soon(starts.run)
        async with trio.open_nursery() as nursery:
            for pid in range(120):
                nursery.start_soon(attempt, pid)
        beside.cancel_scope.cancel()
    assert bounds[0] == 4 and max(bounds[:60]) == 8 and bounds[-1] <= 2


@pytest.mark.parametrize("way", ["sleeps", "computes", "is unseen"])
async def test_agents_that_never_call_block_no_other(
    autojump_clock: trio.testing.MockClock, way: str
) -> None:
    """Those that wait for something else are out of the way in a second or two, those that compute
    and those that cannot be seen in bounded time."""
    machine = Machine(cores=2)
    starts = opened(machine)

    async def never(pid: int) -> None:
        async with starts.start(f"prompt {pid}") as start:
            start.pid = None if way == "is unseen" else pid
            await machine.compute(pid, 1e9 if way == "computes" else 0.2)
            await trio.sleep_forever()

    took = 0.0
    async with trio.open_nursery() as beside:
        beside.start_soon(machine.run)
        beside.start_soon(starts.run)
        for pid in range(4):
            beside.start_soon(never, pid)
        await trio.sleep(0.01)
        began = trio.current_time()
        async with starts.start("prompt 4"):
            took = trio.current_time() - began
        beside.cancel_scope.cancel()
    longest = {
        "sleeps": 2 * (start_limit.QUIET_S + 1.0),
        "computes": 2 * start_limit.LONGEST_S,
        "is unseen": 2 * start_limit.LONGEST_S + 1,
    }
    assert 0 < took <= longest[way]


async def test_a_start_that_is_cancelled_gives_its_place_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    machine = Machine(cores=1)
    starts, order = opened(machine), list[int]()

    async def attempt(pid: int, scope: trio.CancelScope) -> None:
        with scope:
            async with starts.start(f"prompt {pid}"):
                order.append(pid)
                await trio.sleep_forever()

    scopes = [trio.CancelScope() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for pid, scope in enumerate(scopes):
            nursery.start_soon(attempt, pid, scope)
            await trio.sleep(0.01)
        assert order == [0]
        scopes[1].cancel()  # it waits
        scopes[0].cancel()  # it starts
        await trio.sleep(0.01)
        assert order == [0, 2]
        assert starts.counts.waiting == 1
        for scope in scopes:
            scope.cancel()
    assert starts.counts.waiting == starts.counts.starting == 0


def test_memory_bounds_starts_and_one_starts_where_none_runs() -> None:
    limit = StartLimit(cores=8)
    for attempt in range(4):
        limit.wait(attempt)
    assert limit.due(0.0, free=0) == [0]
    assert limit.due(0.0, free=start_limit.START_BYTES) == []
    assert limit.due(0.0, free=2 * start_limit.START_BYTES) == [1]
    limit.see(0, 0.1, Used(0.1, 0.0, 2**30, wants=True))  # larger than was thought
    assert limit.due(0.1, free=2 * 2**30) == []
    assert limit.due(0.1, free=3 * 2**30) == [2]
    limit.called(0, 1.0)
    limit.stopped(1)
    limit.stopped(2)
    assert limit.due(1.0, free=0) == []  # one runs, and its end will free memory
    limit.ended(0, 2.0)
    assert limit.due(2.0, free=0) == [3]


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32))
def test_every_place_is_given_back_whatever_happens(cores: int, seed: int) -> None:
    """Any order of waits, calls, looks and ends: the bound holds, each attempt passes through its
    states in order, and at the end nothing waits or starts."""
    draw, limit, now = random.Random(seed), StartLimit(cores), 0.0
    rank = {None: 3, "waiting": 0, "starting": 1, "running": 2}
    living, last = dict[int, int](), 0
    for attempt in range(60):
        limit.wait(attempt)
        living[attempt] = 0
        for _ in range(draw.randrange(4)):
            now += draw.choice((0.1, 1.0, 50.0))
            one = draw.choice(list(living))
            match draw.randrange(5):
                case 0:
                    limit.called(one, now)
                case 1:
                    limit.ended(one, now)
                case 2:
                    limit.stopped(one)
                case _:
                    used = Used(draw.random(), draw.choice((None, 0.0, 9.0)), 2**20, wants=False)
                    limit.see(one, now, draw.choice((None, used)))
            begun = limit.due(now, PLENTY)
            assert begun == sorted(begun) and (not begun or begun[0] >= last)
            last = begun[-1] if begun else last
            assert len(limit.starting) <= start_limit.MOST * cores
            assert 1 <= limit.counts.most <= start_limit.MOST * cores
            for each, before in list(living.items()):
                living[each] = rank[limit.state(each)]
                assert living[each] >= before
                if living[each] == 3:
                    del living[each]
            if not living:
                break
    for attempt in list(living):
        limit.ended(attempt, now)
    assert limit.counts.waiting == limit.counts.starting == 0
    limit.wait(99)
    assert limit.due(now, free=0) == [99]


async def test_attempts_that_wait_to_start_ask_for_no_more_live_episodes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """62 agents have the ball, and 32 slots decode. Where 60 of the agents only wait, two work."""

    async def most(*starts: StartCounts | None) -> int:
        peers = [SimpleNamespace(report=Report(1.0, {}, {}, [], starts=each)) for each in starts]
        placement = EpisodePlacement(
            SimpleNamespace(of=lambda role: peers),  # type: ignore[arg-type]
            SimpleNamespace(slots=32, held=Counter(engine=32)),  # type: ignore[arg-type]
            RunClock(),
            concurrency=99,
            stall_s=60.0,
        )
        placement.observe(62)
        await trio.sleep(10.0)
        placement.observe(62)
        for _ in range(32):
            placement.call_ended()
        return placement.most

    few = StartCounts(waiting=30, starting=1, most=2, seconds=1.0)
    assert await most(None) == math.ceil(32 * (1 + 62 / 32) * 1.25)
    assert await most(few, few) == math.ceil(32 * (1 + 2 / 32) * 1.25)
    assert await most(few, None) == math.ceil(32 * (1 + 32 / 32) * 1.25)


def test_free_memory_is_the_machines_or_what_is_left_of_a_containers_limit(tmp_path: Path) -> None:
    memory, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    assert free_bytes(memory, limit) == 2**62
    memory.write_text("MemTotal:  2000 kB\nMemAvailable:  1000 kB\n")
    assert free_bytes(memory, limit) == 1000 * 1024
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\nactive_file 7\n")
    limit.write_text("1000000\n")
    assert free_bytes(memory, limit) == 200_000
    limit.write_text("max\n")
    assert free_bytes(memory, limit) == 1000 * 1024


def test_the_use_of_a_process_is_that_of_all_that_it_started(tmp_path: Path) -> None:
    def process(pid: int, state: str, ran_ns: int, waited_ns: int, children: str = "") -> None:
        for task in (pid, pid + 1):
            (folder := tmp_path / str(pid) / "task" / str(task)).mkdir(parents=True)
            (folder / "stat").write_text(f"{task} (a) b) {state} 1 2")
            (folder / "schedstat").write_text(f"{ran_ns} {waited_ns} 3")
            (folder / "children").write_text(children if task == pid + 1 else "")
        (tmp_path / str(pid) / "statm").write_text("100 7 1 1 0 1 0")

    process(10, "S", 250_000_000, 0, children="20 99 ")  # 99 has ended meanwhile
    process(20, "S", 500_000_000, 125_000_000)
    assert used_by(10, tmp_path) == Used(1.5, 0.25, 14 * PAGE, wants=False)
    assert used_by(99, tmp_path) is None
    process(30, "R", 1_000_000_000, 0)
    assert used_by(30, tmp_path) == Used(2.0, None, 7 * PAGE, wants=True)
    mine = used_by(os.getpid())
    assert mine is not None and mine.cpu_s > 0 and mine.bytes > 2**20 and mine.wants
