"""Supervision of a whole run, in virtual time: scripted actors, and a coordinator that says what a
test has it say."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config import Config
from asyncrl.config.errors import DISK_NOT_READY
from asyncrl.config.schema import TrainConfig
from asyncrl.messages import (
    Drain,
    Draining,
    Exited,
    Hello,
    Message,
    Replace,
    Role,
    RunFinished,
    StatusUpdate,
)
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.processes.blame import SAME_S, ActorEnd, causes_first
from asyncrl.runtime.processes.healing import lost_head
from asyncrl.runtime.processes.run_supervisor import MESSAGES, RunSupervisor, SupervisedEnd
from asyncrl.runtime.processes.supervisor import Child
from asyncrl.simulation.network import links

CONFIG = msgspec.convert(
    {
        "rollout": {"actors": 2},
        "reward": {"actors": 1},
        "supervision": {
            "grace_s": 30.0,
            "stall_s": 60.0,
            "start_s": 400.0,
            "restarts": 1,
            "restart_window_s": 1000.0,
        },
    },
    Config,
)
FINISHED = RunFinished(True, "all steps are done")
STATUS = StatusUpdate(1.0, "run", 1, 2, *[0.0] * 2, 0, *[0.0] * 3, 0, 0, 0, *[0.0] * 3, "")


class _Task:
    """A child that lives until it is killed or told to end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.said = f"the last words of {name}"
        self.code: int | None = None
        self.displaced = False
        self._over = trio.Event()

    def end(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self._over.set()

    def kill(self) -> None:
        self.end(-9)

    async def wait(self) -> int:
        await self._over.wait()
        assert self.code is not None
        return self.code

    async def kill_group(self) -> int:
        self.end(-9)
        with trio.CancelScope(shield=True):
            return await self.wait()

    def tail(self) -> str:
        return self.said


class _Actors:
    """Starts tasks; remembers each start, in order, and what the supervisor has shown."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.children: dict[str, _Task] = {}
        self.all: list[_Task] = []
        self.shown: list[object] = []
        self.unready: dict[Role, trio.Event] = {}
        self.no_room: list[OSError | MemoryError] = []  # what the next starts raise
        self.nursery: trio.Nursery

    async def open(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        await trio.lowlevel.checkpoint()

    async def ready(self, role: Role) -> None:
        if role in self.unready:
            await self.unready[role].wait()

    def start(self, role: Role, index: int, incarnation: int) -> Child:
        name = f"{role}-{index}"
        self.started.append(f"{name}/{incarnation}")
        if self.no_room and role != "coordinator":
            raise self.no_room.pop(0)
        self.children[name] = task = _Task(name)
        self.all.append(task)
        return task

    def on_status(self, update: StatusUpdate) -> None:
        self.shown.append("status")

    def on_replace(self, message: Replace) -> None:
        self.shown.append(message.reason)

    def on_failure(self, name: str, code: int, restarting: bool, child: Child) -> None:
        self.shown.append((name, code, restarting, child.tail()))


class Run:
    """A supervised run, and the coordinator's end of its link."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.actors = _Actors()
        self.supervisor = RunSupervisor(config, self.actors, self.actors)
        self.told: list[Message] = []
        self.end: SupervisedEnd | None = None
        self._link: Link

    def fail(self, name: str, code: int = 1, said: str = "") -> None:
        child = self.actors.children[name]
        child.said = said or child.said
        child.end(code)

    async def connect(self) -> None:
        """Be ready for actors."""
        self._link = await self._connected("coordinator")
        self.actors.nursery.start_soon(self._read, self._link)
        await trio.sleep(0.1)

    async def _connected(self, role: Role) -> Link:
        ours, theirs = links()
        self.actors.nursery.start_soon(self._serve, theirs)
        await ours.send(Hello(role, 0, 0, 1))
        return ours

    async def _serve(self, link: Link) -> None:
        try:
            await self.supervisor.converse(link)
        except* EndOfStream:
            pass
        except* LinkError as errors:
            self.actors.shown.append(str(errors.exceptions[0]))
        await link.aclose()

    async def _read(self, link: Link) -> None:
        try:
            async for message, _ in link:
                self.told.append(message)
        except LinkError:
            pass

    async def say(self, message: Message) -> None:
        """Say something as the coordinator, and wait until it has come to pass."""
        await self._link.send(message)
        await trio.sleep(0.1)

    async def another(self, role: Role) -> None:
        """Connect once more, as somebody."""
        await self._connected(role)
        await trio.sleep(0.1)


@asynccontextmanager
async def running(config: Config = CONFIG, *, connected: bool = True) -> AsyncIterator[Run]:
    """A run, which must be over within an hour; no child outlives it."""
    run = Run(config)

    async def supervise() -> None:
        run.end = await run.supervisor.run()

    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise)
            await trio.sleep(0.1)
            if connected:
                await run.connect()
            yield run
    assert all(child.code is not None for child in run.actors.all)


async def test_actors_are_started_once_the_coordinator_is_ready(autojump_clock) -> None:
    async with running(connected=False) as run:
        await trio.sleep(300)
        assert run.actors.started == ["coordinator-0/0"] and not run.supervisor.connected
        await run.connect()
        assert sorted(run.actors.started[1:]) == [
            "reward-0/0",
            "rollout-0/0",
            "rollout-1/0",
            "trainer-0/0",
        ]
        await run.say(FINISHED)
    assert run.end == SupervisedEnd(FINISHED)


async def test_an_actor_waits_for_what_it_needs_and_the_others_do_not(autojump_clock) -> None:
    async with running(connected=False) as run:
        event = run.actors.unready["rollout"] = trio.Event()
        await run.connect()
        assert sorted(run.actors.started[1:]) == ["reward-0/0", "trainer-0/0"]
        event.set()
        await trio.sleep(0.1)
        assert sorted(run.actors.started[3:]) == ["rollout-0/0", "rollout-1/0"]
        await run.say(FINISHED)
    assert run.end == SupervisedEnd(FINISHED)


async def test_a_coordinator_that_does_not_begin_in_time_is_named(autojump_clock) -> None:
    async with running(connected=False) as run:
        pass
    assert trio.current_time() == pytest.approx(400.0)
    assert "nothing within 400 s of its start (supervision.start_s)" in str(run.end.failure)


async def test_a_failed_rollout_actor_is_started_again_within_its_budget(autojump_clock) -> None:
    async with running() as run:
        run.fail("rollout-1", -9)
        await trio.sleep(1)
        assert run.actors.started[-1] == "rollout-1/1"
        assert run.told == [Exited("rollout", 1, -9, True)]
        assert run.actors.shown == [("rollout-1", -9, True, "the last words of rollout-1")]
        await run.say(FINISHED)


ROOMY = msgspec.structs.replace(
    CONFIG, supervision=msgspec.structs.replace(CONFIG.supervision, restarts=5)
)


@pytest.mark.parametrize("progress", [False, True])
async def test_an_equal_error_ends_the_run_unless_the_role_did_something_between(
    progress: bool, autojump_clock
) -> None:
    """The coordinator hears the words, for the summary."""
    words, done = "ValueError: no room for 3", {"reward": 7, "rollout": 90}
    async with running(ROOMY) as run:
        for number in range(3):
            if run.actors.children["reward-0"].code is not None:
                break
            run.actors.children["reward-0"].said = words
            run.fail("reward-0")
            await trio.sleep(5)  # it is started again by then
            await run.say(msgspec.structs.replace(STATUS, done=done))
            done = {"reward": 7 + progress * (number + 1), "rollout": 95 + number}
            await run.say(msgspec.structs.replace(STATUS, done=done))
        assert run.told[0] == Exited("reward", 0, 1, True, words)
        assert [exited.restarting for exited in run.told] == (
            [True] * 3 if progress else [True, False]
        )
        await run.say(FINISHED)
    failure = run.end.failure
    assert (
        (failure is None) if progress else str(failure).startswith(f"{words} (this ended reward-0")
    )


async def test_an_actor_that_refuses_its_input_is_not_started_again(autojump_clock) -> None:
    async with running(ROOMY) as run:
        run.actors.children["reward-0"].said = "the task names no such file"
        run.fail("reward-0", 2)
        await trio.sleep(1)
        assert run.told == [Exited("reward", 0, 2, False, "the task names no such file")]
        await run.say(RunFinished(False, "reward-0 ended with exit code 2"))
    assert run.end.failure is not None and run.end.failure.code == 2


async def test_the_run_goes_on_without_a_rollout_actor_whose_budget_is_spent_and_not_without_all(
    autojump_clock,
) -> None:
    async with running() as run:
        for code in (-9, 3):
            run.fail("rollout-1", code)
            await trio.sleep(1)
        assert run.told[1:] == [Exited("rollout", 1, 3, False)]
        assert run.actors.started.count("rollout-1/1") == 1
        await trio.sleep(50)
        await run.say(STATUS)
        await trio.sleep(50)
        assert run.end is None
        await run.say(STATUS)
        for code in (-9, 4):
            run.fail("rollout-0", code)
            await trio.sleep(1)
    assert run.end.finished is None and "rollout-0" in str(run.end.failure)
    assert "after 1 restart" in str(run.end.failure)
    assert run.end.unrestarted == (Exited("rollout", 0, 4, False),)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "unavailable"),
        (MemoryError(), "no memory is left"),
    ],
)
async def test_an_actor_that_cannot_be_started_is_tried_again_and_named(
    error: OSError | MemoryError, words: str, autojump_clock
) -> None:
    """A lack that passes costs restarts, and one that lasts ends the run by the actor's name; it
    never ends the launcher."""
    more = msgspec.structs.replace(CONFIG.supervision, restarts=3)
    async with running(msgspec.structs.replace(CONFIG, supervision=more)) as run:
        run.actors.no_room = [error]
        run.fail("reward-0", -9)
        await trio.sleep(20)
        assert run.actors.started[-2:] == ["reward-0/1", "reward-0/2"] and run.end is None
        assert run.told == [Exited("reward", 0, -9, True), Exited("reward", 0, 1, True)]
        assert words in str(run.actors.shown[-1])
        run.actors.no_room = [error]
        run.fail("reward-0", -9)
        await trio.sleep(50)
    assert words in str(run.end.failure)
    assert run.end.unrestarted == (Exited("reward", 0, 1, False),)


async def test_a_reward_actor_whose_budget_is_spent_ends_the_run(autojump_clock) -> None:
    async with running() as run:
        for code in (-9, 3):
            run.fail("reward-0", code)
            await trio.sleep(1)
    assert run.end.unrestarted == (Exited("reward", 0, 3, False),)


@pytest.mark.parametrize("name", ["rollout-0", "reward-0", "trainer-0"])
async def test_an_actor_that_ends_while_the_run_drains_is_not_started_again(
    name: str, autojump_clock
) -> None:
    async with running() as run:
        await run.say(Draining())
        run.fail(name)
        await trio.sleep(1)
        assert f"{name}/1" not in run.actors.started
        assert run.told == [Exited(name[:-2], 0, 1, False)]  # type: ignore[arg-type]
        await run.say(FINISHED)
    role, index = name.split("-")
    assert run.end == SupervisedEnd(FINISHED, None, (Exited(role, int(index), 1, False),))


async def test_a_coordinator_that_fails_while_it_drains_fails_the_run(autojump_clock) -> None:
    async with running() as run:
        await run.say(Draining())
        run.fail("coordinator-0")
    assert run.end.failure is not None and run.end.failure.name == "coordinator-0"


async def test_a_coordinator_that_ends_without_a_word_fails_the_run(autojump_clock) -> None:
    async with running() as run:
        run.fail("coordinator-0", 0)
    assert run.end.failure is not None and run.end.failure.code == 0


async def test_a_silent_coordinator_stands_still(autojump_clock) -> None:
    async with running() as run:
        began = trio.current_time()
        for _ in range(3):
            await trio.sleep(50)
            await run.say(STATUS)
    assert trio.current_time() - began == pytest.approx(3 * 50 + 60, abs=1)
    assert "nothing for 60 s (supervision.stall_s)" in str(run.end.failure)
    assert run.actors.shown == ["status"] * 3


@pytest.mark.parametrize("stood", [61.0, 1000.0])
async def test_a_launcher_that_stood_still_does_not_take_the_coordinator_for_silent(
    stood: float, autojump_clock
) -> None:
    async with running() as run:
        await trio.sleep(55)
        autojump_clock.jump(stood)
        await trio.sleep(2)
        assert run.end is None
        await run.say(STATUS)
        await trio.sleep(58)
        await run.say(FINISHED)
    assert run.end == SupervisedEnd(FINISHED)


async def test_a_launcher_that_stood_still_gives_a_drain_its_grace(autojump_clock) -> None:
    async with running() as run:
        run.supervisor.interrupt()
        await trio.sleep(10)
        autojump_clock.jump(100.0)
        await trio.sleep(15)
        await run.say(FINISHED)
    assert run.end == SupervisedEnd(FINISHED)


async def test_a_launcher_that_stood_still_waits_for_a_coordinator_that_begins(
    autojump_clock,
) -> None:
    async with running(connected=False) as run:
        await trio.sleep(10)
        autojump_clock.jump(1000.0)
        await trio.sleep(100)
        await run.connect()
        await run.say(FINISHED)
    assert run.end == SupervisedEnd(FINISHED)


@pytest.mark.parametrize("displaced", [False, True])
async def test_the_ranks_of_a_trainer_end_with_the_first_that_is_lost(
    autojump_clock, displaced: bool
) -> None:
    """Also where its machine is lost: no other rank can take its place."""
    async with running(msgspec.structs.replace(CONFIG, train=TrainConfig(ranks=3))) as run:
        run.actors.children["trainer-1"].displaced = displaced
        run.fail("trainer-1")
        await trio.sleep(0.1)
        assert [run.actors.children[f"trainer-{rank}"].code for rank in range(3)] == [-9, 1, -9]
        assert run.actors.children["rollout-0"].code is None
        await run.say(RunFinished(False, "the trainer was lost", "lost"))
    assert run.end is not None and run.end.unrestarted[0] == Exited("trainer", 1, 1, False)
    assert run.actors.started.count("trainer-1/0") == 1 and "trainer-1/1" not in run.actors.started


async def test_after_a_trainers_failure_the_coordinator_has_its_grace_to_finish(
    autojump_clock,
) -> None:
    async with running() as run:
        run.fail("trainer-0")
        await trio.sleep(32)
        await run.say(bad := RunFinished(False, "the trainer was lost"))
    assert run.end.finished == bad and run.end.unrestarted == (Exited("trainer", 0, 1, False),)
    async with running() as run:  # the coordinator sees the link end before the process is gone
        await run.say(RunFinished(False, "the trainer was lost", "lost"))
        await trio.sleep(4)  # a process that has loaded torch goes slowly where others run
        run.fail("trainer-0", -9)
    assert run.end.unrestarted == (Exited("trainer", 0, -9, False),)
    async with running() as run:  # a run that fails for another reason does not wait
        began = trio.current_time()
        await run.say(RunFinished(False, "the disk is full"))
    assert run.end.unrestarted == () and trio.current_time() - began < 0.2  # `say` takes 0.1
    async with running() as run:
        began = trio.current_time()
        run.fail("trainer-0")
    assert trio.current_time() - began == pytest.approx(33)
    assert run.end.failure is not None and run.end.failure.name == "trainer-0"


async def test_only_the_start_that_is_meant_is_replaced(autojump_clock) -> None:
    async with running() as run:
        run.fail("rollout-0")
        await trio.sleep(1)
        second = run.actors.children["rollout-0"]
        await run.say(Replace("rollout", 0, 0, "it sends garbage"))
        assert second.code is None
        await run.say(Replace("rollout", 0, 1, "it sends garbage again"))
        assert second.code == -9
        assert run.actors.shown[1:3] == ["it sends garbage", "it sends garbage again"]
        await run.say(FINISHED)


@pytest.mark.parametrize("role", ["coordinator", "rollout"])
async def test_only_the_coordinator_is_listened_to_and_once(role: Role, autojump_clock) -> None:
    async with running() as run:
        await run.another(role)
        assert run.actors.shown == [
            "only the coordinator may connect to the launcher, and only once"
        ]
        await run.say(FINISHED)


async def test_a_message_that_is_not_a_coordinators_is_refused(autojump_clock) -> None:
    async with running() as run:
        await run.say(Drain())
        assert run.actors.shown == ["the launcher does not understand Drain"]
        run.supervisor.cancel()


async def test_an_interrupt_drains_and_the_run_has_its_grace(autojump_clock) -> None:
    async with running() as run:
        unread = [Exited("rollout", 0, 1, True, f"word {number}") for number in range(MESSAGES)]
        for message in unread:  # it reads nothing while it stands still
            run.supervisor.tell(message)
        assert run.supervisor.interrupt() == "drains"
        await trio.sleep(29)
        assert run.told.count(Drain()) == 1 and run.end is None
        assert [message for message in run.told if message != Drain()] == unread
    assert trio.current_time() == pytest.approx(30.2, abs=0.1)
    assert run.end == SupervisedEnd(None)


async def test_a_run_that_is_over_does_not_say_that_it_drains(autojump_clock) -> None:
    async with running() as run:
        await run.say(RunFinished(ok=True, reason="all steps are done"))
        assert run.supervisor.interrupt() == "over"
        assert run.supervisor.interrupt() == "ends"
    assert run.end is not None and run.end.finished is not None


@pytest.mark.parametrize("ended", ["twice", "before it began"])
async def test_an_interrupt_that_cannot_drain_ends_the_run_at_once(
    ended: str, autojump_clock
) -> None:
    async with running(connected=ended == "twice") as run:
        assert run.supervisor.interrupt() == ("drains" if ended == "twice" else "ends")
        assert run.supervisor.interrupt() == "ends"
    assert trio.current_time() < 1 and run.end == SupervisedEnd(None)


LOST = "asyncrl.actors.errors.CoordinatorLost: it lost its coordinator before it was drained"
BROKEN = "asyncrl.runtime.ipc.errors.LinkBroken: the link to the coordinator broke"
CAUSE = "RuntimeError: can't start new thread"


@pytest.mark.parametrize("words", [LOST, BROKEN])
@pytest.mark.parametrize("heard_s", [0.0, 0.3, 0.9])
async def test_who_failed_first_is_named_and_not_who_was_heard_first(
    words: str, heard_s: float, autojump_clock
) -> None:
    """The trainer's link breaks before the coordinator's process is gone."""
    async with running() as run:
        run.fail("trainer-0", said=words)
        run.fail("rollout-0", said=words)
        await trio.sleep(heard_s)
        run.fail("coordinator-0", said=CAUSE)
    assert run.end is not None and run.end.failure is not None
    assert run.end.failure.name == "coordinator-0"
    lost = lost_head(run.end)
    assert lost is not None and lost.role == "coordinator"
    [first, *others] = [shown[0] for shown in run.actors.shown if isinstance(shown, tuple)]
    assert first == "coordinator-0" and sorted(others) == ["rollout-0", "trainer-0"]


async def test_a_broken_link_is_named_where_nothing_else_has_ended(autojump_clock) -> None:
    async with running() as run:
        run.fail("rollout-0", said=BROKEN)
        await trio.sleep(SAME_S + 0.2)
        assert run.actors.shown == [("rollout-0", 1, True, BROKEN)]
        run.fail("trainer-0", said=LOST)
        await run.say(RunFinished(False, "the trainer was lost", "lost"))
    assert run.end is not None and [end.role for end in run.end.unrestarted] == ["trainer"]
    lost = lost_head(run.end)
    assert lost is not None and lost.role == "trainer"


async def test_what_the_coordinator_said_is_the_end_however_its_process_ends(
    autojump_clock,
) -> None:
    """Its disk is full, so it ends by an error behind its last message; the trainer has lost it."""
    said = RunFinished(False, "the journal could not be written: make room, and resume the run")
    async with running() as run:
        run.fail("trainer-0", said=LOST)
        await run.say(said)
        run.fail("coordinator-0", DISK_NOT_READY, "JournalNotReady: no room")
    assert run.end is not None and run.end.finished == said and run.end.failure is None
    assert lost_head(run.end) is None


ROLES = st.sampled_from([("trainer", 0), ("coordinator", 0), ("rollout", 0), ("reward", 0)])


@given(st.lists(st.tuples(ROLES, st.floats(0.0, 3.0), st.booleans()), max_size=6))
def test_no_consequence_is_before_its_cause(
    drawn: list[tuple[tuple[Role, int], float, bool]],
) -> None:
    drawn.sort(key=lambda each: each[1])
    ends = [
        ActorEnd(Exited(role, number, 1, False), at, consequence)
        for number, ((role, _), at, consequence) in enumerate(drawn)
    ]
    found = causes_first(ends)
    assert sorted(each.index for each in found) == [*range(len(ends))]
    causes = [each for each in found if not ends[each.index].consequence]
    assert causes == [end.exited for end in ends if not end.consequence], "in the order heard"
    for place, each in enumerate(found):
        end = ends[each.index]
        for later in found[place:]:
            other = ends[later.index]
            near = abs(other.at - end.at) <= SAME_S
            assert not (end.consequence and not other.consequence and near)
