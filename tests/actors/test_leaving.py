"""Rollout actors whose process is told to end: what they hold goes on elsewhere, and nothing of it
is lost."""

from __future__ import annotations

import os
import signal

import trio
import trio.testing
from memory_link import memory_links
from scripted_parts import STOP, VOCABULARY
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.peers import Peer, Roster
from asyncrl.actors.notice import GONE, open_notice
from asyncrl.engines.scripted import hashed
from asyncrl.experience import events as e
from asyncrl.messages import Drain, EngineReady, Hello, Leases, Leaving

SLOW = hashed(vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10, seconds_per_token=1.0)


def made(actors: int = 2) -> ScriptedWorld:
    """A run whose responses take so long that what is under way is seen."""
    settings: dict[str, dict[str, object]] = {
        "task": {"eval_size": 0},
        "rollout": {"actors": actors, "attempts": 1},
        "train": {"steps": 6, "eval_every": 0, "checkpoint_every": 0},
        "supervision": {"stall_s": 1000.0, "restarts": 1},
    }
    world = ScriptedWorld(configured(**settings))
    world.script = SLOW
    return world


async def test_what_it_holds_goes_on_elsewhere_with_every_token(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = made()
    taken = list[int]()

    async def notice() -> None:
        await world.until(lambda: world.holds("rollout-1"))
        process = world.processes["rollout-1"]
        engine = world.coordinator.parts.engines.get("rollout-1")
        assert engine is not None
        held = set(engine.held["train"])
        taken.extend(held)
        process.noticed.set()
        assert await process.wait() == GONE
        back = [event for event in world.of(e.Requeued) if event.rollout in held]
        ended = {event.rollout for event in world.of(e.Sealed)}
        assert {event.rollout for event in back} | (ended & held) == held
        assert back and all(event.reason == "interrupted" and not event.failed for event in back)

    outcome = await world.run(notice)
    world.check()
    assert outcome.ok, outcome.reason
    assert taken and not world.of(e.LateTokens)
    buried = {event.rollout for event in world.of(e.Buried)}
    assert not buried.intersection(taken)
    assert world.coordinator.parts.statistics.restarts["rollout"] == 1


async def test_it_is_given_nothing_more_and_comes_again_with_all_its_slots(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = made()

    def leases() -> int:
        return sum(event.holder == "rollout-1" for event in world.of(e.Leased))

    async def notice() -> None:
        await world.until(lambda: world.holds("rollout-1"))
        pool = world.coordinator.parts.engines
        slots = pool.slots
        world.processes["rollout-1"].noticed.set()
        await world.until(lambda: pool.slots < slots)
        assert pool.slots == slots // 2
        leased = leases()
        await world.until(lambda: pool.get("rollout-1") is None)
        assert leases() == leased
        await world.until(lambda: world.holds("rollout-1"))
        assert pool.slots == slots

    assert (await world.run(notice)).ok


async def test_a_publication_under_way_is_not_broken_by_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = made()

    async def notice() -> None:
        publishing = lambda: world.coordinator.parts.publishing  # noqa: E731
        await world.until(lambda: publishing().served == 1)
        await world.until(lambda: publishing().busy)
        world.processes["rollout-1"].noticed.set()
        await world.until(lambda: not world.processes["rollout-1"].alive)

    assert (await world.run(notice)).ok
    assert not world.coordinator.parts.publishing.failed


async def test_the_only_one_may_leave_too(autojump_clock: trio.testing.MockClock) -> None:
    world = made(actors=1)

    async def notice() -> None:
        await world.until(lambda: world.holds("rollout-0"))
        world.processes["rollout-0"].noticed.set()

    outcome = await world.run(notice)
    world.check()
    assert outcome.ok and not world.of(e.LateTokens)


async def test_a_run_that_ends_meanwhile_drains_as_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = made()

    async def notice() -> None:
        await world.until(lambda: world.holds("rollout-1"))
        world.processes["rollout-1"].noticed.set()
        assert world.supervisor.interrupt() == "drains"

    outcome = await world.run(notice)
    world.check()
    assert outcome.ok and "stopped early" in outcome.reason


async def test_one_that_was_never_ready_is_sent_home(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = made(actors=3)
    world.absent = {"rollout-2"}
    heard = list[object]()

    async def stranger() -> None:
        link = await world.connect(Hello("rollout", 2, 0, 1))
        await link.send(Leaving())
        heard.append((await link.receive())[0])

    outcome = await world.run(stranger)
    assert outcome.ok, outcome.reason
    assert [type(message) for message in heard] == [Drain]


async def test_a_repeated_word_that_it_is_ready_does_not_undo_its_leaving(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As on a link that repeats what it carries."""
    world = made(actors=3)
    world.absent = {"rollout-2"}
    heard = list[type]()

    async def stranger() -> None:
        link = await world.connect(Hello("rollout", 2, 0, 1))
        for message in (EngineReady(2), Leaving(), EngineReady(2)):
            await link.send(message)
        while not heard or heard[-1] is not Drain:
            heard.append(type((await link.receive())[0]))
        await link.send(EngineReady(2))
        await trio.testing.wait_all_tasks_blocked()
        assert world.coordinator.parts.engines.get("rollout-2") is None

    outcome = await world.run(stranger)
    assert outcome.ok, outcome.reason
    assert Leases not in heard


async def test_a_notice_is_sigterm() -> None:
    async with open_notice() as notice:
        assert not notice.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(60):
            await notice.wait()
        os.kill(os.getpid(), signal.SIGTERM)  # more of them change nothing
        await trio.testing.wait_all_tasks_blocked()


async def test_the_end_of_the_start_before_is_not_that_of_the_one_after() -> None:
    roster = Roster(lambda: None)
    first, second = (Peer(Hello("rollout", 0, start, 1), memory_links()[0]) for start in (0, 1))
    roster.add(first)
    roster.drained.add(first.name)
    assert roster.remove(first) and roster.drained == {"rollout-0"}
    roster.add(second)
    assert not roster.drained, "a run that drains waits for it"
