"""The journal: what is on disk is always the first `durable` events, whatever dies, and folding
them is the state."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl import journal
from asyncrl.config import load
from asyncrl.config.journal_size import LOG_BYTES, journal_bytes
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience, fold
from asyncrl.files import held_bytes
from asyncrl.journal import (
    Journal,
    JournalError,
    JournalNotReady,
    SqliteDisk,
    SqliteHistory,
    sqlite,
)
from asyncrl.journal.disk import Abandon, Compact, DiskFull, EventRows, Keep, Write
from asyncrl.journal.sqlite import WAL_BYTES, copy
from asyncrl.journal.writer import ROW_BYTES
from asyncrl.messages import ForeignAnswer, NoVerdict, Scored


def everything() -> list[e.AnyEvent]:
    """One of each kind of event, in an order that can happen."""
    ids = bytes(range(12))
    return [
        e.Published(0),
        e.Admitted(0, 0, 3, "train", 0, bytes(8), 4),
        e.Leased(0, "rollout-0", 1),
        e.Extended(0, 1, 0, 0, ids, ids),
        e.RoutingKnown(0, 1, 1, 2, ids[:4]),
        e.Requeued(0, 1, "owner died"),
        e.Leased(0, "rollout-1", 2),
        e.Extended(0, 2, 0, 3, ids[:4], ids[:4]),
        e.Sealed(0, 2, "length"),
        e.Judged(0, Scored(0.5)),
        e.Leased(1, "rollout-1", 1),
        e.Sealed(1, 1, "stop"),
        e.Judged(1, NoVerdict("timeout")),
        e.Buried(2, "attempts"),
        e.LateTokens(7),
        e.Taken(0, [0]),
        e.Trained(0, 3, {"icepop": 1}, {"icepop": [(1, 2)]}),
        e.Admitted(1, 3, 1, "evaluation", 4, bytes(8), 4, 0),
        e.Dropped(1, "evaluation"),
        e.Admitted(2, 4, 1, "train", 1, bytes(8), 4, None, None, 8, 2),
        e.Leased(4, "rollout-1", 1),
        e.Sealed(4, 1, "stop"),
        e.Judged(4, Scored(1.0, [0.25, 0.75])),
        e.Discarded(4, "zero_variance"),
        e.Admitted(3, 5, 1, "train", 2, bytes(8), 4),
        e.Leased(5, "rollout-1", 1),
        e.Sealed(5, 1, "stop"),
        e.Judged(5, Scored(1.0)),
        e.Taken(1, [5]),
        e.StoredForReplay(3, 2),
        e.Replayed(2, [3]),
        e.Trained(5, 0, {}),
        e.Published(1),
        e.Checkpointed(1, "checkpoints/1"),
        e.Admitted(4, 6, 1, "train", 3, bytes(8), 4, played=True),
        e.Begun(6, "agents-0", 1),
        e.Called(6, 1, 7, None, bytes(8), 5, 4, 1.0),
        e.Leased(7, "rollout-1", 1),
        e.Extended(7, 1, 1, 0, ids, ids),
        e.Answered(7, 1, "stop"),
        e.Cut(6, 1, 7, 2),
        e.Noted(6, 1, "tool", b"42"),
        e.Left(6, 1, "agents-0 died"),
        e.Begun(6, "agents-0", 2),
        e.Reused(6, 2, 7, "critic"),
        e.Called(6, 2, 8, (7, 4), bytes(4), 6, 2, 1.0, "planner"),
        e.Rewarded(6, 2, 7, 0.5),
        e.ToolFailed(6, 2, 8, "search"),
        e.Rewarded(6, 2, None, 1.0),
        e.Sealed(6, 2, "stop"),
        e.Admitted(5, 9, 1, "train", 4, bytes(8), 4, most=2),
        e.Leased(9, "rollout-1", 1),
        e.Sealed(9, 1, "stop"),
        e.Judged(9, Scored(1.0)),
        e.Grown(5, 2, 10),
        e.Leased(10, "rollout-1", 1),
        e.Extended(10, 1, 1, 0, ids, ids),
        e.Spared(10, 2, 0.5),
        e.Pruned(10, "pruned_unlikely", 1),
        e.Admitted(6, 11, 1, "train", 5, bytes(8), 4, imports=1),
        e.Leased(11, "rollout-1", 1),
        e.Sealed(11, 1, "stop"),
        e.Judged(11, Scored(0.0)),
        e.Imported(6, 12, [ForeignAnswer("file", "line 3", 1, ids, ids)]),
        e.Admitted(7, 13, 1, "train", 6, bytes(8), 4, leaves=2),
        e.Leased(13, "rollout-1", 1),
        e.Extended(13, 1, 1, 0, ids, ids),
        e.Forked(13, 2, 14),
    ]


ALL = len(everything())


def on_disk(path: Path, after: int = 0) -> list[e.AnyEvent]:
    numbers, events = [], []
    for number, event in journal.read(path, after):
        numbers.append(number)
        events.append(event)
    assert numbers == list(range(after + 1, after + 1 + len(numbers)))
    return events


def big(number: int) -> e.Extended:
    """An event of 200 KiB."""
    return e.Extended(number, 1, 0, 0, bytes(100 * 1024), bytes(100 * 1024))


def size_of(path: Path) -> int:
    return path.stat().st_size


async def committed(log: Journal) -> None:
    """Return once something is on disk, without asking for it as `flush` does. A commit takes real
    time and no virtual time."""
    if not log.durable:
        await log._committed.park()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.mark.parametrize("commit_ms", [0, 1])
async def test_events_come_back_as_they_went(path: Path, commit_ms: int) -> None:
    async with Journal.open(path, commit_ms=commit_ms) as log:
        assert [log.append(event) for event in everything()] == list(range(1, ALL + 1))
        assert log.appended == ALL and log.durable == 0
        await log.flush()
        assert log.durable == ALL
        assert on_disk(path) == everything(), "also while the writer lives"
    assert journal.fold(path) == fold(everything())


def test_everything_is_everything() -> None:
    assert {type(event) for event in everything()} == set(get_args(e.AnyEvent))


async def test_fold_of_the_journal_is_the_state_at_every_event(path: Path) -> None:
    """Invariant 8."""
    experience = Experience()
    async with Journal.open(path, commit_ms=0) as log:
        for event in everything():
            experience.apply(event)
            log.append(event)
            await log.flush()
            assert journal.fold(path) == experience


async def test_a_journal_is_continued(path: Path) -> None:
    for event in everything():
        async with Journal.open(path, run="a") as log:
            assert log.durable == log.appended
            log.append(event)
    assert on_disk(path) == everything()


async def test_flush_of_nothing_returns(path: Path) -> None:
    async with Journal.open(path) as log:
        await log.flush()
        await log.room()
    assert on_disk(path) == []
    assert journal.fold(path) == Experience()


async def test_a_commit_waits_for_more_and_flush_does_not(path: Path) -> None:
    async with Journal.open(path, commit_ms=60_000) as log:
        log.append(e.LateTokens(1))
        await trio.testing.wait_all_tasks_blocked()
        assert log.durable == 0
        with trio.fail_after(60):
            await log.flush()
        assert log.durable == 1


async def test_commits_are_grouped_by_time(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with Journal.open(path, commit_ms=100) as log:
        for _ in range(5):
            log.append(e.LateTokens(1))
            await trio.sleep(0.01)
        assert log.durable == 0
        await trio.sleep(0.051)
        await committed(log)
        assert log.durable == 5
        assert log.statistics().commits == 1


async def test_a_full_row_does_not_wait(path: Path) -> None:
    async with Journal.open(path, commit_ms=60_000) as log:
        with trio.fail_after(60):
            for number in range(7):
                log.append(big(number))
            await committed(log)
    assert on_disk(path) == [big(number) for number in range(7)]
    with sqlite3.connect(path) as connection:
        assert [
            first for (first,) in connection.execute("SELECT first FROM events ORDER BY first")
        ] == [1, 7]
    assert 6 * 200 * 1024 > ROW_BYTES > 5 * 200 * 1024


async def test_room_bounds_what_waits_for_the_disk(path: Path) -> None:
    most = 0
    async with Journal.open(path, commit_ms=60_000, limit_bytes=500_000) as log:
        with trio.fail_after(60):
            for number in range(20):
                await log.room()
                assert log.pending_bytes < 500_000
                log.append(big(number))
                most = max(most, log.pending_bytes)
    assert 500_000 < most < 500_000 + 210 * 1024
    assert len(on_disk(path)) == 20


async def test_a_buffer_that_is_just_full_has_no_room(path: Path, tmp_path: Path) -> None:
    async with Journal.open(tmp_path / "other.sqlite", commit_ms=60_000) as log:
        log.append(big(0))
        log.append(big(1))
        both = log.pending_bytes
    async with Journal.open(path, commit_ms=60_000, limit_bytes=both) as log:
        with trio.fail_after(60):
            log.append(big(0))
            await log.room()
            assert log.durable == 0, "there is room for one byte at least"
            log.append(big(1))
            assert log.pending_bytes == both
            await log.room()
            assert log.durable == 2 and log.pending_bytes == 0


async def test_statistics_add_up(path: Path) -> None:
    async with Journal.open(path, commit_ms=0) as log:
        for event in everything():
            log.append(event)
        assert log.statistics().pending_bytes == log.pending_bytes > 0
        await log.flush()
        now = log.statistics()
    assert (now.appended, now.durable, now.pending_bytes, now.commits) == (ALL, ALL, 0, 1)
    assert 0 < now.slowest_s <= now.seconds
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT sum(length(data)) FROM events").fetchone() == (now.bytes,)


async def test_leaving_commits_also_when_cancelled_or_by_an_error(path: Path) -> None:
    with trio.CancelScope() as scope:
        async with Journal.open(path, commit_ms=60_000) as log:
            log.append(e.LateTokens(1))
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert on_disk(path) == [e.LateTokens(1)]
    with pytest.raises(ExceptionGroup) as caught:
        async with Journal.open(path, commit_ms=60_000) as log:
            log.append(e.LateTokens(2))
            raise ZeroDivisionError
    assert caught.group_contains(ZeroDivisionError, depth=1)
    assert on_disk(path) == [e.LateTokens(1), e.LateTokens(2)]


async def test_an_event_that_cannot_be_encoded_takes_no_other_with_it(path: Path) -> None:
    async with Journal.open(path) as log:
        log.append(e.LateTokens(1))
        with pytest.raises(TypeError):
            log.append(e.Taken(0, [1, 2, object()]))  # type: ignore[list-item]
        log.append(e.LateTokens(2))
    assert on_disk(path) == [e.LateTokens(1), e.LateTokens(2)]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.integers(0, 22), max_size=5), after=st.integers(0, 20))
def test_reading_from_anywhere_in_any_row(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], after: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    events = everything()

    async def write() -> None:
        async with Journal.open(path, commit_ms=60_000) as log:
            for number, event in enumerate(events, 1):
                log.append(event)
                if number in cuts:
                    await log.flush()

    trio.run(write)
    assert on_disk(path, after) == events[after:]


# ----------------------------------------------------------------------------- states written down


async def test_a_state_kept_is_read_back_and_the_events_after_it_fold_onto_it(path: Path) -> None:
    experience = Experience()
    async with Journal.open(path, commit_ms=60_000) as log:
        for number, event in enumerate(everything(), 1):
            experience.apply(event)
            log.append(event)
            if number % 6 == 0:
                assert log.keep(number, experience) == number
        await log.flush()
        assert SqliteHistory(path).snapshots() == [(kept, kept) for kept in range(6, ALL + 1, 6)]
        assert journal.fold(path) == experience
        assert on_disk(path) == everything()
    for kept in range(6, ALL + 1, 6):
        assert Experience.of(SqliteHistory(path).snapshot(kept)) == fold(everything()[:kept])
    with pytest.raises(JournalError, match="no snapshot of the state after event 7"):
        SqliteHistory(path).snapshot(7)


@pytest.mark.parametrize("part_bytes", [100, 1_000, 2**26])
async def test_a_state_may_be_larger_than_what_a_row_may_be(
    part_bytes: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit is 10⁹ bytes a row; here it is a little more than a part."""
    experience = fold(everything())
    written = msgspec.msgpack.encode(experience.snapshot())
    monkeypatch.setattr(sqlite, "PART_BYTES", part_bytes)
    disk = await SqliteDisk.open(path, "r")
    if part_bytes < len(written):
        disk._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, part_bytes + 400)
    for version in (3, 4):  # the second takes the first one's place
        await disk.commit([Keep(7, version, bytearray(written))])
    await disk.commit([Keep(9, 5, written), Keep(11, 6, written)])
    await disk.aclose()
    history = SqliteHistory(path)
    assert history.snapshots() == [(7, 4), (9, 5), (11, 6)]
    assert all(Experience.of(history.snapshot(kept)) == experience for kept in (7, 9, 11))


async def test_each_state_is_whole_whenever_it_is_written(path: Path) -> None:
    experience = Experience()
    async with Journal.open(path, commit_ms=60_000) as log:
        for number, event in enumerate(everything(), 1):
            experience.apply(event)
            log.append(event)
            log.keep(number, experience)
            if number % 3 == 0:
                await log.flush()
    kept = Experience()
    for number, event in enumerate(everything(), 1):
        kept.apply(event)
        assert Experience.of(SqliteHistory(path).snapshot(number)) == kept


async def test_what_lies_before_a_kept_state_is_forgotten_when_nobody_goes_back_to_it(
    path: Path,
) -> None:
    async with Journal.open(path, commit_ms=0) as log:
        experience = Experience()
        for number, event in enumerate(everything(), 1):
            experience.apply(event)
            log.append(event)
            if number in (5, 10, 15):
                log.keep(number, experience)
        log.compact(4)
        await log.flush()
        assert on_disk(path) == everything(), "of which nothing is kept: nothing is forgotten"
        log.compact(10)
        log.append(e.LateTokens(1))
        await log.flush()
        assert SqliteHistory(path).snapshots() == [(10, 10), (15, 15)]
        assert [number for number, _ in SqliteHistory(path).events(10)] == list(range(11, ALL + 2))
        with pytest.raises(JournalError, match="has no events from 4 to 10"):
            list(SqliteHistory(path).events(3))
        log.abandon(10)
        log.append(e.LateTokens(1))
        await log.flush()
        assert SqliteHistory(path).snapshots() == [(10, 10)]
        assert journal.fold(path) == fold([*everything(), e.LateTokens(1), e.LateTokens(1)])
    async with Journal.open(path) as log:
        assert log.durable == ALL + 2


async def test_of_one_version_the_newest_state_is_gone_back_to(path: Path) -> None:
    """A resumed run writes down where it goes on from, for the same checkpoint; twice at the same
    event where nothing came between."""
    experience = Experience()
    async with Journal.open(path, commit_ms=0) as log:
        for event in everything()[:8]:
            experience.apply(event)
            log.append(event)
            log.keep(0, experience)
            log.keep(0, experience)
        log.compact(0)
        await log.flush()
        assert SqliteHistory(path).snapshots() == [(8, 0)]
        assert journal.fold(path) == experience


async def test_flush_waits_for_states_and_for_what_is_forgotten_too(path: Path) -> None:
    experience = Experience()
    async with Journal.open(path, commit_ms=60_000) as log:
        for version in (0, 1):
            experience.apply(e.LateTokens(1))
            log.append(e.LateTokens(1))
            await log.flush()
            log.keep(version, experience)
            await log.flush()
            assert (version + 1, version) in SqliteHistory(path).snapshots()
        log.compact(1)
        await log.flush()
        assert SqliteHistory(path).snapshots() == [(2, 1)]


async def test_a_journal_of_which_all_is_forgotten_says_so_to_who_asks_for_it(path: Path) -> None:
    async with Journal.open(path, commit_ms=0) as log:
        for event in everything():
            log.append(event)
        log.keep(1, fold(everything()))
        log.compact(1)
        await log.flush()
    assert journal.fold(path) == fold(everything())
    assert list(journal.read(path)) == list(SqliteHistory(path).events(ALL)) == []
    for after in (0, ALL - 1):
        with pytest.raises(JournalError, match=f"has no events from {after + 1} to {ALL}"):
            list(SqliteHistory(path).events(after))


async def test_who_reads_sees_one_moment_whatever_is_forgotten_meanwhile(path: Path) -> None:
    experience = Experience()
    async with Journal.open(path, commit_ms=0) as log:
        for number, event in enumerate(everything(), 1):
            experience.apply(event)
            log.append(event)
            if number in (5, 15):
                log.keep(number, experience)
        await log.flush()
        began = journal.read(path)
        assert next(began) == (1, everything()[0])
        with SqliteHistory(path) as history:
            assert [number for number, _ in history.snapshots()] == [5, 15]
            log.compact(15)
            log.append(e.LateTokens(1))
            await log.flush()
            assert SqliteHistory(path).snapshots() == [(15, 15)]
            assert Experience.of(history.snapshot(5)) == fold(everything()[:5])
            assert [number for number, _ in history.events(5)] == list(range(6, ALL + 1))
            assert journal.state(history) == experience
        assert [number for number, _ in began] == list(range(2, ALL + 1))


async def test_what_a_reader_made_the_log_grow_to_is_given_back(path: Path) -> None:
    """While a transaction is open that reads, SQLite cannot begin its write-ahead log anew."""
    wal = path.with_name(path.name + "-wal")

    async def grow(log: Journal, events: int) -> None:
        for number in range(events):
            log.append(big(number))
            await log.flush()

    async with Journal.open(path, commit_ms=0) as log:
        await grow(log, 10)
        with SqliteHistory(path) as history:
            assert history.snapshots() == []
            await grow(log, 60)
            assert size_of(wal) > 12_000_000
        await grow(log, 30)
        assert size_of(wal) <= WAL_BYTES < 12_000_000


async def test_a_compacted_journal_grows_no_further(path: Path) -> None:
    sizes, experience = [], Experience()
    async with Journal.open(path, commit_ms=0) as log:
        for version in range(30):
            for number in range(5):
                log.append(big(number))
            log.keep(version, experience)
            log.compact(version - 1)
            await log.flush()
            sizes.append(log.statistics().disk_bytes)
    assert max(sizes[4:]) <= sizes[4] * 1.1
    assert 2 * 2**20 < sizes[-1] < 12 * 2**20


async def test_a_journal_takes_what_is_printed_before_the_run_and_no_more(path: Path) -> None:
    """Steps of full responses, a checkpoint each fourth, which is complete when the next step
    begins."""
    every, groups, size, tokens, chunk = 4, 16, 8, 256, 8
    sets = [
        f"train.batch_groups={groups}",
        f"rollout.group_size={size}",
        f"rollout.max_new_tokens={tokens}",
        "staleness.depth=0",
    ]
    sets += [
        f"engine.chunk_tokens={chunk}",
        "engine.context_tokens=272",
        f"train.checkpoint_every={every}",
        "train.steps=100",
    ]
    sets += ["rollout.filter=none"]  # for which more groups may be started
    ids, x, most, saved = bytes(4 * chunk), Experience(), 0, 0
    async with Journal.open(path, commit_ms=0) as log:

        def store(event: e.AnyEvent) -> None:
            x.apply(event)
            log.append(event)

        store(e.Published(0))
        log.keep(0, x)
        for step in range(6 * every):
            for group in range(step * groups, (step + 1) * groups):
                store(e.Admitted(group, group * size, size, "train", group, bytes(4 * 16), tokens))
            for rollout in list(x.rollouts):
                store(e.Leased(rollout, "rollout-0", 1))
                for start in range(0, tokens, chunk):
                    store(e.Extended(rollout, 1, step, start, ids, ids))
                store(e.Sealed(rollout, 1, "length"))
                store(e.Judged(rollout, Scored(0.5)))
            if step and step % every == 0:
                log.compact(saved)
                saved = step
            await log.flush()
            most = max(most, log.statistics().disk_bytes)
            taken = list(x.rollouts)
            store(e.Taken(step, taken))
            for rollout in taken:
                store(e.Trained(rollout, tokens, {}))
            store(e.Published(step + 1))
            if (step + 1) % every == 0:
                log.keep(step + 1, x)
    printed = journal_bytes(load(None, sets, {}))
    assert 0.6 * (printed - LOG_BYTES) < size_of(path) < most <= printed


# ---------------------------------------------------------------------------------------- failures


async def test_a_full_disk_is_waited_for_and_nothing_is_lost(path: Path) -> None:
    disk = await SqliteDisk.open(path, "")
    async with Journal.over(disk, commit_ms=0, limit_bytes=300_000) as log:
        log.append(e.LateTokens(1))
        await log.flush()
        disk._connection.execute("PRAGMA max_page_count = 20")
        log.append(big(1))
        log.append(big(2))
        with trio.move_on_after(5.0) as soon:
            await log.room()
        assert soon.cancelled_caught and "full" in log.trouble and log.durable == 1
        disk._connection.execute("PRAGMA max_page_count = 1000000")
        with trio.fail_after(60):
            await log.flush()
        assert (log.trouble, log.durable) == ("", 3)
    assert on_disk(path) == [e.LateTokens(1), big(1), big(2)]


async def test_a_disk_that_stays_full_is_said_to_everybody_and_loses_nothing_durable(
    path: Path,
) -> None:
    disk = await SqliteDisk.open(path, "")
    with pytest.raises(ExceptionGroup) as caught:
        async with Journal.over(disk, commit_ms=0, full_s=0.0) as log:
            log.append(e.LateTokens(1))
            await log.flush()
            disk._connection.execute("PRAGMA max_page_count = 20")
            log.append(big(1))
            with pytest.raises(JournalError, match="make room"), trio.CancelScope(shield=True):
                await log.flush()
            with pytest.raises(JournalError, match="make room"):
                log.append(e.LateTokens(2))
            with pytest.raises(JournalError, match="make room"), trio.CancelScope(shield=True):
                await log.room()
                await log.flush()
            assert log.durable == 1
            await trio.sleep_forever()
    assert caught.group_contains(JournalNotReady, match="make room", depth=1), "and the nursery"
    assert "make room, and resume the run" in log.given_up
    assert on_disk(path) == [e.LateTokens(1)]


class FullDisk:
    """Full for a number of seconds; keeps the numbers of what it got."""

    def __init__(self, until: float) -> None:
        self.last = 0
        self.size = 0
        self.until = until
        self.got: list[Write] = []

    async def commit(self, writes: list[Write]) -> None:
        await trio.sleep(0.01)
        if trio.current_time() < self.until:
            raise DiskFull("the disk is full")
        self.got += writes

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("leave", [False, True])
async def test_what_is_tried_again_keeps_its_order_also_when_the_run_ends_meanwhile(
    leave: bool, autojump_clock: trio.testing.MockClock
) -> None:
    disk = FullDisk(trio.current_time() + 2.5)
    with trio.CancelScope() as scope:
        async with Journal.over(disk, commit_ms=10, full_s=20.0) as log:
            for version in range(6):
                log.append(e.LateTokens(1))
                log.keep(version, Experience())
                log.compact(version - 1)
                log.append(e.LateTokens(1))
                await trio.sleep(0.5)
            assert log.durable == 0
            log.abandon(3)
            if leave:
                scope.cancel()
            await log.flush()
    got: list[object] = []
    for write in disk.got:
        got += (
            range(write.first, write.first + write.count)
            if isinstance(write, EventRows)
            else [write]
        )
    kept = Experience().snapshot()
    expected: list[object] = []
    for version in range(6):
        number = 2 * version + 1
        expected += [
            number,
            Keep(number, version, msgspec.msgpack.encode(kept)),
            Compact(version - 1),
            number + 1,
        ]
    assert got == [*expected, Abandon(3)]


@pytest.mark.parametrize("seconds", [0.5, 9.5, 30.0])
async def test_a_full_disk_is_tried_again_as_long_as_it_may(
    seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    disk = FullDisk(trio.current_time() + seconds)
    in_time = seconds < 20
    try:
        async with Journal.over(disk, commit_ms=10, full_s=20.0) as log:
            for number in range(40):
                log.append(e.LateTokens(number + 1))
                await trio.sleep(1)
            await log.flush()
            assert in_time and log.durable == 40
    except* JournalError:
        assert not in_time and 19 < trio.current_time() < 23
    firsts = [write.first for write in disk.got]
    counts = [write.count for write in disk.got]
    assert firsts == [1 + sum(counts[:place]) for place in range(len(counts))] and sum(counts) == (
        40 if in_time else 0
    )


@pytest.mark.explore
async def test_an_error_of_the_file_itself_is_waited_for_too(path: Path) -> None:
    """A quota that is used up, or a file that may not grow, is an input/output error to SQLite, and
    no full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with Journal.open(path, commit_ms=0, limit_bytes=300_000) as log:
        log.append(e.LateTokens(1))
        await log.flush()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
            log.append(big(1))
            log.append(big(2))
            with trio.move_on_after(5.0):
                await log.room()
            assert "I/O error" in log.trouble and log.durable == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with trio.fail_after(60):
            await log.flush()
        assert (log.trouble, log.durable) == ("", 3)
    assert on_disk(path) == [e.LateTokens(1), big(1), big(2)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)


async def test_somebody_who_locks_the_journal_is_waited_for(path: Path, impatient: None) -> None:
    """Such as a shell in which somebody began a transaction: it is said, and the run goes on when
    it ends."""
    async with Journal.open(path, commit_ms=0) as log:
        shell = sqlite3.connect(path, isolation_level=None)
        shell.execute("BEGIN IMMEDIATE")
        log.append(e.LateTokens(1))
        with trio.move_on_after(3.0):
            await log.flush()
        assert "locked" in log.trouble and log.durable == 0
        assert on_disk(path) == [], "who reads need not wait"
        shell.execute("ROLLBACK")
        with trio.fail_after(60):
            await log.flush()
        assert log.trouble == ""
        shell.close()
    assert on_disk(path) == [e.LateTokens(1)]


@pytest.mark.parametrize("what", ["", "-wal"])
async def test_a_journal_that_was_taken_away_is_waited_for(path: Path, what: str) -> None:
    """SQLite writes on, into a file that no resume finds: what is there only is not durable."""
    file, away = path.with_name(path.name + what), path.with_name("away")
    async with Journal.open(path, commit_ms=0) as log:
        log.append(e.LateTokens(1))
        await log.flush()
        file.rename(away)
        log.append(e.LateTokens(2))
        with trio.move_on_after(3.0) as soon:
            await log.flush()
        assert soon.cancelled_caught and log.durable == 1
        assert log.trouble == f"{file} was removed, or its directory was: put it back"
        away.rename(file)
        with trio.fail_after(60):
            await log.flush()
        assert (log.trouble, log.durable) == ("", 2)
    assert on_disk(path) == [e.LateTokens(1), e.LateTokens(2)]


async def test_a_copy_which_has_no_log_goes_on_with_one(path: Path) -> None:
    async with Journal.open(path, commit_ms=0) as log:
        log.append(e.LateTokens(1))
        await log.flush()
    copied = path.with_name("copy")
    copy(path, copied)
    async with Journal.open(copied, commit_ms=0) as log:
        log.append(e.LateTokens(2))
        with trio.fail_after(60):
            await log.flush()
        assert copied.with_name("copy-wal").exists()
    assert on_disk(copied) == [e.LateTokens(1), e.LateTokens(2)]


async def test_a_journal_that_stays_away_ends_the_run_in_a_sentence(path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Journal.open(path, commit_ms=0, full_s=0.0) as log:
            await trio.Path(path).unlink()
            log.append(e.LateTokens(1))
            await trio.sleep_forever()
    assert caught.group_contains(
        JournalNotReady, match="was removed.*put it back, and resume", depth=1
    )
    assert not await trio.Path(path).exists()


async def test_somebody_who_never_lets_go_is_named(path: Path, impatient: None) -> None:
    shell = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(ExceptionGroup) as caught:
        async with Journal.open(path, commit_ms=0, full_s=0.0) as log:
            shell.execute("BEGIN IMMEDIATE")
            log.append(e.LateTokens(1))
            await trio.sleep_forever()
    assert caught.group_contains(
        JournalError, match="locked.*end the process that holds it, and resume", depth=1
    )
    shell.close()
    assert on_disk(path) == []


def test_a_journal_that_finds_no_room_to_be_made_is_refused_in_a_sentence(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
        with pytest.raises(JournalError, match="has room"):
            open_once(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_leaving_a_full_disk_says_what_is_lost(path: Path) -> None:
    disk = await SqliteDisk.open(path, "")
    with pytest.raises(JournalError, match="the last events of the run are lost"):
        async with Journal.over(disk, commit_ms=60_000) as log:
            log.append(e.LateTokens(1))
            await log.flush()
            disk._connection.execute("PRAGMA max_page_count = 20")
            log.append(big(1))
    assert on_disk(path) == [e.LateTokens(1)]


async def test_after_any_failure_nothing_is_written_in_the_place_of_what_was_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise MemoryError

    with pytest.raises(ExceptionGroup) as caught:
        async with Journal.open(path, commit_ms=0) as log:
            log.append(e.LateTokens(1))
            await log.flush()
            monkeypatch.setattr(SqliteDisk, "_commit", fail)
            log.append(e.LateTokens(2))
            await trio.testing.wait_all_tasks_blocked()
            log.append(e.LateTokens(3))
            await trio.sleep_forever()
    assert caught.group_contains(MemoryError) or caught.group_contains(JournalError)
    assert on_disk(path) == [e.LateTokens(1)]


async def test_two_writers_are_noticed(path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with Journal.open(path) as one, Journal.open(path) as other:
            one.append(e.LateTokens(1))
            await one.flush()
            other.append(e.LateTokens(2))
            await other.flush()
    assert caught.group_contains(JournalError, match="two runs write to it")
    assert on_disk(path) == [e.LateTokens(1)]


def open_once(path: Path, run: str = "") -> None:
    async def main() -> None:
        async with Journal.open(path, run=run):
            pass

    trio.run(main)


def refused_by_readers(path: Path, says: str) -> None:
    for use in (lambda: list(journal.read(path)), lambda: journal.fold(path)):
        with pytest.raises(JournalError, match=says):
            use()


def refused(path: Path, says: str, run: str = "") -> None:
    refused_by_readers(path, says)
    with pytest.raises(JournalError, match=says):
        open_once(path, run)


def change(path: Path, sql: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql, values)
    connection.close()


def test_what_is_no_journal_is_refused_in_a_sentence(path: Path) -> None:
    refused_by_readers(path, "there is no journal at .*; put it back")
    with pytest.raises(JournalError, match="could not be used"):
        open_once(path / "no" / "such" / "directory")
    path.write_bytes(b"not a database " * 99)
    refused(path, "or not a journal")
    path.unlink()
    change(path, "CREATE TABLE header (x)")
    refused(path, "not a journal of asyncrl")


def test_another_format_or_run_is_refused_in_a_sentence(path: Path) -> None:
    open_once(path, "b")
    for other in ("a", "c", "", "bb", "B"):
        with pytest.raises(JournalError, match=f"belongs to run 'b', not to '{other}'"):
            open_once(path, other)
    for version in (99, -1):
        change(path, f"UPDATE header SET format = {version}")
        refused(path, f"has format {version}", "b")


@pytest.mark.parametrize("column", ["number", "version"])
def test_a_number_beyond_its_bounds_is_refused_in_a_sentence(path: Path, column: str) -> None:
    open_once(path)
    change(path, "INSERT INTO snapshots VALUES (1, 0, 2, x'')")
    for number in (-(2**62), -1, 2**62 + 1, 2**63 - 1, 1.5, "one", b"1"):
        change(path, f"UPDATE snapshots SET {column} = ?", number)
        with pytest.raises(JournalError, match="an event or a version is not a number"):
            SqliteHistory(path).snapshots()


def test_a_journal_that_was_not_made_yet_holds_nothing(path: Path) -> None:
    """Its writer was killed in the moment that it began."""
    path.touch()
    assert (
        list(journal.read(path)) == []
        and journal.fold(path) == Experience()
        and SqliteHistory(path).snapshots() == []
    )
    open_once(path)
    assert list(journal.read(path)) == []


def test_what_users_tools_leave_in_a_journal_does_no_harm(path: Path) -> None:
    open_once(path)
    change(path, "ANALYZE")
    open_once(path)
    assert journal.fold(path) == Experience()
    change(path, "DELETE FROM header")
    refused(path, "not a journal of asyncrl")


FOREIGN = {
    "trigger": "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
    "view": "CREATE VIEW v AS SELECT * FROM events",
    "index": "CREATE INDEX i ON events (data)",
    "table": "CREATE TABLE more (x)",
    "column": "ALTER TABLE snapshots ADD COLUMN more AS (zeroblob(900000000))",
    "name": "ALTER TABLE events RENAME COLUMN data TO more",
    "none": "DROP TABLE snapshots",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_somebody_put_into_a_journal_is_refused(path: Path, kind: str) -> None:
    open_once(path, "r")
    change(path, FOREIGN[kind])
    refused(path, "is not as asyncrl makes it", "r")
    with pytest.raises(JournalError, match="is not as asyncrl makes it"):
        SqliteHistory(path).snapshots()


def test_reading_writes_into_no_file_of_somebody_else(path: Path, tmp_path: Path) -> None:
    """A reader notes in the log's index how far it reads, also a read-only one."""
    victim = tmp_path / ".profile"
    victim.write_text("echo hello\n")
    open_once(path)
    index = path.with_name(f"{path.name}-shm")
    index.hardlink_to(victim)
    for read in (
        lambda: list(journal.read(path)),
        lambda: SqliteHistory(path).snapshots(),
        lambda: copy(path, tmp_path / "copy"),
    ):
        with pytest.raises(JournalError, match="-shm: this is a second name of a file"):
            read()
    assert victim.read_text() == "echo hello\n"
    index.unlink()
    assert list(journal.read(path)) == []


def test_a_bomb_of_generated_data_is_not_read(path: Path) -> None:
    """12 KB that were 36 GB as soon as anybody asked."""
    open_once(path)
    change(path, "DROP TABLE snapshots")
    change(
        path,
        "CREATE TABLE snapshots (number INTEGER NOT NULL, part INTEGER NOT NULL, version INTEGER "
        "NOT NULL, data BLOB GENERATED ALWAYS AS (zeroblob(900000000)))",
    )
    for part in range(40):
        change(path, "INSERT INTO snapshots VALUES (1, ?, 1)", part)
    with pytest.raises(JournalError, match="is not as asyncrl makes it"):
        SqliteHistory(path).snapshot(1)


@pytest.mark.parametrize("table", ["snapshots", "events", "header"])
def test_a_value_without_a_bound_is_not_read(
    path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_once(path)
    monkeypatch.setattr(sqlite, "ROW_BYTES", 10_000)
    match table:
        case "snapshots":
            change(path, "INSERT INTO snapshots VALUES (1, 0, 1, ?)", bytes(20_000))
        case "events":
            change(path, "INSERT INTO events VALUES (1, ?)", bytes(20_000))
        case _:
            change(path, "UPDATE header SET run = ?", "x" * 20_000)
    with pytest.raises(JournalError, match="too big"):
        list(journal.read(path))
        SqliteHistory(path).snapshot(1)


def test_a_state_in_ever_more_rows_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_once(path)
    for part in range(4):
        change(path, "INSERT INTO snapshots VALUES (?, ?, 1, ?)", 1, part, bytes(1000))
        change(path, "INSERT INTO snapshots VALUES (?, 0, 1, ?)", 2 + part, b"")
    monkeypatch.setattr(sqlite, "STATE_BYTES", 2000)
    with pytest.raises(JournalError, match="a snapshot has more than the 2,000 bytes"):
        SqliteHistory(path).snapshot(1)
    monkeypatch.setattr(sqlite, "STATES", 3)
    with pytest.raises(JournalError, match="it has more than 3 snapshots"):
        SqliteHistory(path).snapshots()


def test_a_journal_of_holes_is_read_no_further_than_it_holds_bytes(path: Path) -> None:
    """Pages of 64 KiB of which 4 KiB are there: 16 bytes are read for each on the disk. Memory is
    taken for no more than the file has, and one row."""
    whole = path.with_name("whole")
    with sqlite3.connect(whole, isolation_level=None) as made:
        made.execute("PRAGMA page_size = 65536")
        sqlite._make(made, "")
        for part in range(16):
            made.execute("INSERT INTO snapshots VALUES (1, ?, 1, ?)", (part, bytes(2**22)))
        made.execute("INSERT INTO events VALUES (1, ?)", (bytes(2**23),))
    made.close()
    with whole.open("rb") as source, path.open("wb") as target:
        while block := source.read(4096):
            if any(block):
                target.write(block)
            else:
                target.seek(len(block), os.SEEK_CUR)
        target.truncate()
    assert held_bytes(path) < 2**23 < 2**26 < path.stat().st_size
    tracemalloc.start()
    try:
        with pytest.raises(JournalError, match=r"more than the .* bytes that it may have"):
            SqliteHistory(path).snapshot(1)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_events_that_share_pages_are_read_no_further_than_the_file_holds_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_once(path)
    change(path, "INSERT INTO events VALUES (1, ?)", msgspec.msgpack.encode([e.LateTokens(1)] * 99))
    assert len(list(journal.read(path))) == 99
    monkeypatch.setattr(sqlite, "held_bytes", lambda _: 99)
    with pytest.raises(JournalError, match="its events have more bytes than its file"):
        list(journal.read(path))


def test_a_journal_of_before_states_were_kept_is_refused_in_a_sentence(path: Path) -> None:
    change(path, "CREATE TABLE header (format INTEGER NOT NULL, run TEXT NOT NULL)")
    change(path, "CREATE TABLE events (first INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    change(path, "INSERT INTO header VALUES (1, '')")
    refused(
        path,
        "has format 1, but this asyncrl reads format 4: continue with the asyncrl that wrote it, "
        "or start a run in another run.dir",
    )


def test_a_journal_of_the_names_before_is_refused_and_no_event_of_it_is_read(path: Path) -> None:
    """Format 2 as it was: an event that has another name now, one with the same name whose fields
    still fit, and a snapshot. Only the number tells that `Leased` may mean something else."""
    change(path, "CREATE TABLE header (format INTEGER NOT NULL, run TEXT NOT NULL)")
    change(path, "CREATE TABLE events (first INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    change(
        path,
        "CREATE TABLE snapshots (number INTEGER PRIMARY KEY, version INTEGER NOT NULL, data BLOB "
        "NOT NULL)",
    )
    change(path, "INSERT INTO header VALUES (2, 'r')")
    old = [["Leased", 0, "rollout-0", 1], ["Recycled", 0, 1, "lease expired", False], ["Late", 3]]
    change(path, "INSERT INTO events VALUES (1, ?)", msgspec.msgpack.encode(old))
    change(path, "INSERT INTO snapshots VALUES (3, 1, ?)", msgspec.msgpack.encode([{}, 1]))
    before = path.read_bytes()
    refused(path, "has format 2, but this asyncrl reads format 4: continue with the asyncrl", "r")
    for read in (SqliteHistory(path).snapshots, lambda: SqliteHistory(path).snapshot(3)):
        with pytest.raises(JournalError, match="has format 2"):
            read()
    assert path.read_bytes() == before


def test_a_row_that_holds_no_events_is_refused_in_a_sentence(path: Path) -> None:
    open_once(path)
    change(path, "INSERT INTO events VALUES (1, ?)", b"\x91\x92\xa7Unknown\x01")
    refused(path, "not an event of this asyncrl")


async def test_a_copy_made_while_the_writer_lives_is_whole(path: Path, tmp_path: Path) -> None:
    """The files as a dead machine leaves them: the write-ahead log not folded in, its index
    missing."""
    async with Journal.open(path, commit_ms=0) as log:
        for event in everything():
            log.append(event)
        await log.flush()
        log.append(e.LateTokens(1))
        copy = tmp_path / "copy.sqlite"
        shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
    assert on_disk(copy) == everything()
    async with Journal.open(copy) as log:
        assert log.durable == len(everything())


WRITER = """
import sys, trio
from asyncrl.experience.events import Extended
from asyncrl.journal import Journal

async def main():
    async with Journal.open(sys.argv[1], commit_ms=1) as log:
        number = 0
        while True:
            for _ in range(100):
                number += 1
                log.append(Extended(number, 1, 0, 0, bytes(128), bytes(128)))
            await log.flush()
            print(log.durable, flush=True)

trio.run(main)
"""


@pytest.mark.processes
def test_sigkill_loses_nothing_that_was_durable(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        durable = [int(writer.stdout.readline()) for _ in range(20)][-1]
        os.kill(writer.pid, signal.SIGKILL)
        durable = max([durable, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
    events = on_disk(path)
    assert len(events) >= durable >= 2000
    assert [event.rollout for event in events if isinstance(event, e.Extended)] == list(
        range(1, len(events) + 1)
    )


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lost=st.integers(0, 40_000), broken=st.none() | st.integers(0, 40_000))
def test_a_torn_tail_is_cut_and_what_is_left_is_the_first_events(
    tmp_path_factory: pytest.TempPathFactory, lost: int, broken: int | None
) -> None:
    """The write-ahead log as a machine that lost its power may leave it: cut anywhere, or with a
    byte changed."""
    path = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    copy = path.with_name("copy.sqlite")
    log_copy = path.with_name("copy.sqlite-wal")

    async def write() -> None:
        async with Journal.open(path, commit_ms=0) as log:
            experience = Experience()
            for event in everything():
                experience.apply(event)
                log.append(event)
                await log.flush()
            log.keep(1, experience)
            await log.flush()
            shutil.copy(path, copy)
            shutil.copy(f"{path}-wal", log_copy)

    trio.run(write)
    torn = bytearray(log_copy.read_bytes())
    if broken is not None:
        torn[broken % len(torn)] ^= 0xFF
    log_copy.write_bytes(torn[: len(torn) - lost % len(torn)])
    left = on_disk(copy)
    assert left == everything()[: len(left)]
    assert journal.fold(copy) == fold(left)
    open_once(copy)
    assert on_disk(copy) == left


async def test_the_state_of_a_checkpoint_is_forced_to_the_disk_and_no_other_commit_is(
    path: Path,
) -> None:
    """A checkpoint is on disk before it has its name; two of them must not outlive a power cut that
    their states did not."""
    disk = await SqliteDisk.open(path, "")
    try:
        said: list[str] = []
        disk._connection.set_trace_callback(said.append)
        for writes, forced in (([], "NORMAL"), ([Keep(0, 1, b"")], "FULL"), ([], "NORMAL")):
            said.clear()
            await disk.commit(writes)
            assert said[: said.index("BEGIN IMMEDIATE")] == [f"PRAGMA synchronous = {forced}"]
    finally:
        await disk.aclose()
