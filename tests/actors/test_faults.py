"""Faults in virtual time that once went wrong: each test is named after what must not happen
again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import trio
from memory_link import memory_links
from numpy import float32, full, int32
from scripted_parts import MemoryLog
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.actors.coordinator.resume import begin_again
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.experience import Experience
from asyncrl.experience.recovery import recovered
from asyncrl.experience.snapshot import Snapshot
from asyncrl.explain import run_status
from asyncrl.journal import Journal
from asyncrl.journal.disk import DiskFull, Write
from asyncrl.messages import (
    ChunkHead,
    Chunks,
    Drain,
    EngineReady,
    Hello,
    MicroBatch,
    NoVerdict,
    Replace,
    Role,
    Scored,
    Stepped,
    TokenCount,
)
from asyncrl.runtime.ipc.errors import LinkError
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.training.checkpoint_index import CheckpointError


def same(tokens: int, seconds_per_token: float, ends: str = "stop") -> object:
    """Every response alike."""

    def script(request: Request) -> Script:
        left = tokens - request.prefix_tokens
        return Script(full(left, 5, int32), full(left, -1.0, float32), seconds_per_token, ends)  # type: ignore[arg-type]

    return script


@pytest.mark.parametrize("closing", [True, False])
async def test_a_drain_saves_what_its_cursor_says_and_a_resumed_run_trains_nothing_twice(
    closing: bool, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(
        configured(train={"steps": 1000, "checkpoint_every": 0}, supervision={"grace_s": 20.0})
    )
    world.learner._step_s = 1.0

    async def user() -> None:
        stepping = lambda: world.coordinator.parts.stepping  # noqa: E731
        await world.until(
            lambda: (
                world.learner.version >= 3
                and stepping().closing is closing
                and stepping()._batching.units > 0
            )
        )
        world.tell(Drain())

    assert (await world.run(user)).ok
    version, cursor = world.learner.saved[-1]
    number, kept, written = world.log.kept[-1]
    assert (number, kept) == (cursor, version)
    in_weights = {
        s.rollout
        for batch, _ in world.learner.batches
        if batch.step < version
        for s in batch.samples
    }
    state = recovered(
        Experience.of(msgspec.msgpack.decode(written, type=Snapshot)), world.log.events[cursor:]
    )
    assert not any(r.status is RolloutStatus.TAKEN for r in state.rollouts.values())
    again = ScriptedWorld(configured(train={"steps": version + 3, "checkpoint_every": 0}))
    again.log.events = list(world.log.events)
    again.store = EventStore(state, again.log)
    begin_again(again.store, again.log, version)  # type: ignore[arg-type]
    assert not any(r.status is RolloutStatus.LEASED for r in state.rollouts.values())
    again.learner.version = version
    with trio.fail_after(5000):
        outcome = await again.run()
    again.check()
    assert again.store.experience.prescribed is None
    assert outcome.ok and not any(isinstance(message, Replace) for message in again.heard)
    assert not in_weights & {s.rollout for batch, _ in again.learner.batches for s in batch.samples}


async def test_a_run_without_verdicts_ends_and_names_the_commonest_reason(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, rollout={"filter_patience": 20}))
    world.verifiers._verdict = lambda split, prompt_index, ids: NoVerdict("raised: ValueError: no")
    with trio.fail_after(5000):
        outcome = await world.run()
    world.check()
    assert not outcome.ok and outcome.reason.startswith("ValueError: no (the last 20 groups were")


async def test_a_response_with_all_its_tokens_and_no_finish_is_sealed_when_its_engine_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={"max_new_tokens": 4, "attempts": 50},
            engine={"chunk_tokens": 4},
        )
    )
    world.script = same(4, 0.01, "hang")  # type: ignore[assignment]

    async def murderer() -> None:
        while True:
            await world.until(
                lambda: any(
                    not r.remaining and r.holder for r in world.store.experience.rollouts.values()
                )
            )
            world.kill("rollout-0")
            await trio.sleep(2)

    with trio.fail_after(5000):
        outcome = await world.run(murderer)
    world.check()
    assert outcome.ok


@pytest.mark.parametrize("role", ["rollout", "reward"])
async def test_a_successor_that_comes_before_its_predecessor_is_gone_takes_its_work_over(
    role: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(
        configured(task={"eval_size": 0}, rollout={"attempts": 50}, train={"steps": 6})
    )
    world.verifiers._seconds = 0.5

    async def successor() -> None:
        def busy():
            return (
                world.holds("rollout-0")
                and world.coordinator.parts.scoring._load.get("reward-0", 0) > 1
            )

        await world.until(lambda: world.learner.version >= 2 and busy())
        await world.successor(f"{role}-0")

    outcome = await world.run(successor)
    world.check()
    assert outcome.ok and world.seconds < world.config.rollout.lease_s
    assert not any(isinstance(message, Replace) for message in world.heard)


@pytest.mark.parametrize("seconds", [10.0, 70.0, 150.0])
async def test_a_long_checkpoint_does_not_hold_up_publications(
    seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    world = ScriptedWorld(configured(train={"steps": 6}, supervision={"stall_s": 1000.0}))

    async def copy(cursor: int, short=world.learner.copy) -> object:  # type: ignore[no-untyped-def]
        await trio.sleep(seconds)
        return await short(cursor)

    world.learner.copy = copy  # type: ignore[method-assign, assignment]
    outcome = await world.run()
    world.check()
    assert outcome.ok and world.coordinator.parts.publishing.failed == []
    assert max(world.coordinator.parts.publishing.seconds) < 5


async def test_a_run_that_starves_saves_once(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(
        configured(task={"train_size": 7, "epochs": 1}, train={"steps": 50, "checkpoint_every": 0})
    )
    world.learner._step_s = 3.0
    outcome = await world.run()
    assert outcome.ok and len(world.learner.saved) == 1


@pytest.mark.explore
async def test_a_peer_that_sends_what_it_may_not_costs_its_connection_and_not_the_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(rollout={"actors": 2}))
    world.absent = {"rollout-1"}

    async def strangers() -> None:
        await world.until(lambda: world.learner.version >= 1)
        chunks = Chunks([ChunkHead(0, 1, 0, 0, 1, "")])
        for message, buffers in (
            (chunks, ()),
            (chunks, (b"1234", b"12345678")),
            (Stepped(9, 0.0, {}), ()),
            (Drain(), ()),
        ):
            link = await world.connect(Hello("rollout", 1, 0, 1))
            await link.send(message, *buffers)
            with pytest.raises(Exception, match=r"closed|broke|ended"):
                while True:
                    await link.receive()

    outcome = await world.run(strangers)
    world.check()
    assert outcome.ok and world.learner.version == 4


async def test_a_slow_step_is_no_stall(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(
        configured(
            train={"steps": 2, "micro_tokens": 16},
            supervision={"stall_s": 20.0},
            task={"eval_size": 0},
        )
    )
    world.learner._seconds_per_token = 0.5
    outcome = await world.run()
    assert outcome.ok and world.seconds > 40


async def test_dropped_groups_are_replaced_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """100 groups of 0.04 s generation and 0.05 s judgement, one at a time: about ten seconds, not
    one a second."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            staleness={"depth": 0, "max_lag": 0},
            train={"batch_groups": 1},
            rollout={"filter": "zero_variance", "filter_patience": 100},
        )
    )
    world.verifiers._verdict = lambda split, prompt_index, ids: Scored(1.0)
    world.script = same(4, 0.01)  # type: ignore[assignment]
    await world.run()
    assert world.seconds < 30


async def test_an_engine_that_streams_nothing_for_a_whole_lease_is_replaced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(
            rollout={"actors": 2, "attempts": 50, "lease_s": 10.0},
            supervision={"stall_s": 300.0},
            task={"eval_size": 0},
            train={"steps": 80},
        )
    )
    engines = []

    def engine(process: SimProcess, make=world.make_engine) -> object:  # type: ignore[no-untyped-def]
        made = make(process)
        if not engines:
            made._script = same(4, 10_000.0)
        engines.append(made)
        return made

    world.make_engine = engine  # type: ignore[method-assign, assignment]
    outcome = await world.run()
    world.check()
    assert outcome.ok and len(engines) == 3
    assert sum(isinstance(message, Replace) for message in world.heard) == 1


async def test_long_held_out_prompts_do_not_end_a_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 40}, rollout={"filter_patience": 32}))
    world.source.prompts = lambda split, prompt_index: "x" * (60 if split == "evaluation" else 5)
    outcome = await world.run()
    world.check()
    assert outcome.ok and world.learner.version == 4
    assert world.store.experience.ledger.rollouts.discarded["prompt_too_long"] >= 40


async def test_a_fenced_engine_is_out_at_once(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured(rollout={"actors": 2}))
    wrong = iter([True])
    world.checksums = lambda index, version: (
        [0] if index == 1 and version == 2 and next(wrong, False) else [1000 + version]
    )
    world.restart_s = 3.0
    await world.run()
    world.check()
    published = [event.version for event in world.log.events if isinstance(event, e.Published)]
    assert max(map(published.count, published)) <= 3


class _Filling:
    """A disk that has no room while it is `full`."""

    last = size = 0
    full = False

    async def commit(self, writes: list[Write]) -> None:
        await trio.sleep(0.01)
        if self.full:
            raise DiskFull("there is no room on the disk")

    async def aclose(self) -> None:
        pass


@pytest.mark.explore
@pytest.mark.parametrize("at", [0.5, 1.5])
async def test_a_disk_that_is_full_for_longer_than_every_deadline_blames_nobody(
    at: float, autojump_clock: trio.testing.MockClock
) -> None:
    """Answers are not read meanwhile, because the journal has no room for their events."""
    sections = {
        "rollout": {"actors": 2, "lease_s": 30.0},
        "supervision": {"stall_s": 100.0},
        "publication": {"deadline_s": 20.0},
    }
    world, disk = (
        ScriptedWorld(configured(task={"eval_size": 0}, train={"steps": 60}, **sections)),
        _Filling(),
    )
    async with Journal.over(disk, limit_bytes=8000, full_s=100.0) as journal:
        world.store = EventStore(Experience(), journal)

        async def fill() -> None:
            world.coordinator.parts.journal_status = lambda: run_status.JournalStatus(
                trouble=journal.trouble
            )
            await trio.sleep(at)
            disk.full = True
            await trio.sleep(90.0)
            disk.full = False

        outcome = await world.run(fill)
    assert outcome.ok and world.seconds > 90.0
    assert not [message for message in world.heard if isinstance(message, Replace)]


def _held(root: object) -> dict[str, int]:
    """Count the things in each container that a coordinator refers to, by its place."""
    found: dict[str, int] = {}
    stack, seen = [("", root)], set[int]()
    while stack:
        place, thing = stack.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict | list | set | tuple | deque):
            found[place] = found.get(place, 0) + len(thing)
            stack += [
                (f"{place}[]", part)
                for part in (thing.values() if isinstance(thing, dict) else thing)
            ]
        elif type(thing).__module__.startswith(("actors.", "asyncrl.experience")):
            names = getattr(thing, "__struct_fields__", None) or getattr(thing, "__dict__", {})
            stack += [
                (f"{place}.{name}", getattr(thing, name))
                for name in names
                if name not in ("log", "leases", "_leases")
            ]  # leases forget with time
    return found


@pytest.mark.explore
async def test_a_long_run_holds_no_more_than_a_short_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A coordinator keeps things of live work, of a while, and of each prompt, because a run may
    last for weeks."""
    held = []
    for steps in (100, 200):
        task, train = (
            {"eval_size": 0, "train_size": 50},
            {"steps": steps, "batch_groups": 1, "checkpoint_every": 10},
        )
        world = ScriptedWorld(configured(task=task, train=train))
        assert (await world.run()).ok
        held.append(_held(world.coordinator))
        assert world.coordinator_summary(Outcome(True, "")).publication.count == steps + 1
    short, long = held
    assert {
        place: (short.get(place, 0), count)
        for place, count in long.items()
        if count > short.get(place, 0) + 20
    } == {}


async def test_a_checkpoint_that_was_not_written_earlier_does_not_stand_for_the_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The prompts are used up at version 5. The disk had no room for the checkpoint of version 4,
    and has some now."""
    world = ScriptedWorld(
        configured(task={"train_size": 10, "epochs": 1, "eval_size": 0}, train={"steps": 1000})
    )
    write = world.learner.write

    async def written(version: int, cursor: int) -> Path:
        if version == 4:
            raise CheckpointError("there is no room on the disk")
        return await write(version, cursor)

    world.learner.write = written  # type: ignore[method-assign]
    outcome = await world.run()
    assert outcome.ok and "used up after 5" in outcome.reason, outcome
    assert [version for version, _ in world.learner.saved] == [2, 5]


async def test_no_second_checkpoint_is_written_before_the_journal_knows_the_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two that it does not know would be all there are, and a crash would leave none to go on
    from."""

    class Locked(MemoryLog):
        durable = 0  # type: ignore[assignment]

    world = ScriptedWorld(
        configured(train={"steps": 8, "checkpoint_every": 1}, task={"eval_size": 0})
    )
    world.log = Locked()
    world.store = EventStore(world.store.experience, world.log)

    async def unlock() -> None:
        await world.until(lambda: world.learner.version >= 8)
        await trio.sleep(10)
        assert [version for version, _ in world.learner.saved] == [1]
        world.log.durable = world.log.appended  # type: ignore[misc]

    with trio.fail_after(1000):
        outcome = await world.run(unlock)
    assert outcome.ok and [version for version, _ in world.learner.saved] == [1, 8]


@pytest.mark.parametrize(
    ("role", "index"),
    [
        *(("rollout", -1), ("rollout", 2), ("rollout", 99), ("reward", 1), ("trainer", 1)),
        *(("launcher", 0), ("coordinator", 0)),
    ],
)
async def test_who_is_none_of_the_runs_actors_is_refused(
    role: Role, index: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Before anything of it is known: not as an engine, nor as the launcher, who may end a run."""
    world = ScriptedWorld(configured(rollout={"actors": 2}, reward={"actors": 1}))
    refused: list[str] = []

    async def stranger() -> None:
        await world.until(lambda: world.learner.version >= 1)
        ours, theirs = memory_links()
        await ours.send(Hello(role, index, 0, 1))
        await ours.send(Drain() if role == "launcher" else EngineReady(4))
        with pytest.raises(LinkError) as error:
            await world.coordinator.attend(theirs)
        refused.append(str(error.value))
        known = world.coordinator.parts.roster, world.coordinator.parts.engines
        assert all(names.get(f"{role}-{index}") is None for names in known if role != "launcher")

    outcome = await world.run(stranger)
    world.check()
    assert outcome.ok and world.learner.version == 4
    assert refused == [f"{role}-{index} is not an actor of this run"]


async def test_a_trainer_that_counts_wrong_ends_the_run_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(configured())
    accumulate = world.learner.accumulate

    async def too_many(batch: MicroBatch, buffers: Sequence[memoryview]) -> list[TokenCount]:
        return [
            TokenCount(count.rollout, count.trained + 1, count.discarded)
            for count in await accumulate(batch, buffers)
        ]

    world.learner.accumulate = too_many  # type: ignore[method-assign]
    with trio.fail_after(1000):
        outcome = await world.run()
    assert not outcome.ok and "trainer-0 sent what cannot be: rollout" in outcome.reason
