"""The numbers that a journal gives, while its disk is slow and fails: at no moment do they say more
than is on the disk, and who waited has what it waited for."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.journal import Journal
from asyncrl.journal.disk import DiskFull, EventRows, Keep, Locked, Write

ROOM = 200
"""Bytes that may wait for the disk: a few events."""


class SlowDisk:
    """A disk whose commits each take a while, and do not succeed each time. `last` is the number
    of the last event on it, `kept` the versions whose states are."""

    def __init__(self, commits: Sequence[tuple[float, bool]]) -> None:
        self.commits = list(commits)
        self.last, self.size, self.kept = 0, 0, list[int]()

    async def commit(self, writes: Sequence[Write]) -> None:
        seconds, fails = self.commits.pop(0) if self.commits else (0.01, False)
        await trio.sleep(seconds)
        if fails:
            raise DiskFull("no room") if seconds < 0.5 else Locked("another has it")
        for write in writes:
            if isinstance(write, EventRows):
                assert write.first == self.last + 1
                self.last += write.count
                self.size += len(write.data)
            elif isinstance(write, Keep):
                assert write.number <= self.last
                self.kept.append(write.version)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Looks(trio.abc.Instrument):
    """Looks at a journal after each step of each task."""

    def __init__(self, disk: SlowDisk) -> None:
        self.disk, self.wrong = disk, list[str]()
        self.log: Journal | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.log is not None:
            counts = self.log.statistics()
            waits = bool(counts.pending_bytes) >= (counts.durable < counts.appended)
            told = self.log.durable == counts.durable <= self.disk.last <= self.log.appended
            if not (waits and told):
                self.wrong.append(f"{counts}, and the last on the disk is {self.disk.last}")


def event(number: int) -> e.LateTokens:
    return e.LateTokens(number)


STEPS = st.tuples(
    st.sampled_from(["append", "keep", "flush", "room", "nothing"]),
    st.sampled_from([0.02, 0.001, 0.3, 0.0]),
)
BESIDE = [("append", 0.02), ("append", 0.0), ("flush", 0.0)]
"""Steps of which one is beside each part of a commit of 0.4 seconds."""


@example(commits=[(0.4, False), (0.4, True)], commit_ms=0, tasks=[BESIDE, BESIDE])
@given(
    commits=st.lists(st.tuples(st.sampled_from([0.4, 0.02, 0.0, 2.0]), st.booleans()), max_size=6),
    commit_ms=st.sampled_from([10, 0]),
    tasks=st.lists(st.lists(STEPS, min_size=2, max_size=8), min_size=2, max_size=3),
)
def test_no_number_says_more_than_is_on_the_disk(
    commits: list[tuple[float, bool]],
    commit_ms: int,
    tasks: list[list[tuple[str, float]]],
) -> None:
    """Several tasks append, keep states, and wait, while commits are under way, fail and are tried
    again."""
    disk = SlowDisk(commits)
    looks = Looks(disk)

    async def work(log: Journal, steps: list[tuple[str, float]]) -> None:
        for what, seconds in steps:
            match what:
                case "append":
                    for number in range(3):
                        log.append(event(number))
                case "keep":
                    log.keep(log.appended, Experience())
                case "flush":
                    due, states = log.appended, log._asked
                    await log.flush()
                    assert disk.last >= due and log.durable >= due and log._written >= states
                case "room":
                    await log.room()
                    assert log.pending_bytes < ROOM
            await trio.sleep(seconds)

    async def run() -> None:
        async with Journal.over(disk, commit_ms=commit_ms, limit_bytes=ROOM) as log:
            looks.log = log
            async with trio.open_nursery() as nursery:
                for steps in tasks:
                    nursery.start_soon(work, log, steps)
            await log.flush()
            disk.commits.clear()  # the end tries a full disk only once
            log.compact(0)
            assert not log.pending_bytes, "what drops events has no bytes of its own"
            log.append(event(0))
        looks.log = None
        assert disk.last == log.appended

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[looks])
    assert not looks.wrong, looks.wrong[0]
