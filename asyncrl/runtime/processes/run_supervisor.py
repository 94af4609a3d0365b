"""Supervision of a run: starts, restarts and ends its actors, and listens to its coordinator.

    coordinator → once it is ready: trainer × ranks, rollout × N, reward × M, agents × K → the
    coordinator reports how the run ended → everything is cancelled, which kills every actor

`asyncrl.launch.launcher` brings processes, `asyncrl.simulation.world` brings tasks in virtual time;
both are supervised by this code. Invariant: when `RunSupervisor.run` returns, every actor that it
started is dead.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import msgspec
import trio

from asyncrl.config import Config
from asyncrl.config.errors import BAD_INPUT
from asyncrl.config.ranks import ranks_of
from asyncrl.escape import escaped
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
    role_of,
)
from asyncrl.runtime.ipc.endpoints import first_message
from asyncrl.runtime.ipc.errors import LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.processes.blame import SAME_S, ActorEnd, causes_first, is_consequence
from asyncrl.runtime.processes.process import last_words, names_exception
from asyncrl.runtime.processes.repeated_ends import RepeatedEnds
from asyncrl.runtime.processes.standstill import Patience
from asyncrl.runtime.processes.supervisor import (
    ActorFailed,
    Child,
    NotStarted,
    RestartBudget,
    supervise,
)

START_S = 300.0
"""Seconds that the coordinator has, at least, to open the task and, when it resumes, to read the
checkpoint and the journal; `supervision.start_s` may give it more."""
LAST_WORDS_S = 3.0
"""Seconds that the coordinator has, after draining, to write its summary when another actor has
failed."""
CAUSE_S = 5.0
"""Seconds to wait for the end of an actor whose broken link the coordinator has reported: a process
that has loaded torch takes some to exit on a busy machine. They are fewer than the seconds that the
coordinator waits for the launcher to hang up (`GOODBYE_S`)."""
WORDS = 400
"""Characters of last words that are passed on."""
MESSAGES = 64
"""Messages that may wait for the coordinator to read them."""
Interrupted = Literal["drains", "ends", "over"]
"""Effect on a run of being told to end: it drains, it ends at once, or it had ended before."""


class RunActors(Protocol):
    """The actors of a run, started as processes, or as tasks in virtual time."""

    async def open(self, nursery: trio.Nursery) -> None:
        """Prepare what actors need, and serve each connection by `RunSupervisor.converse`.
        `nursery` ends with the run. Raises ActorFailed."""
        ...

    async def ready(self, role: Role) -> None:
        """Wait until an actor of this role can be started, or waiting would not help."""
        ...

    def start(self, role: Role, index: int, incarnation: int) -> Child:
        """Start one actor. `incarnation` counts its starts from 0. Raises OSError and MemoryError
        where the machine has no room for it."""
        ...


class RunObserver(Protocol):
    """Gets the events of the supervision, in order to show or check them."""

    def on_status(self, update: StatusUpdate) -> None:
        """The coordinator reported the status of the run."""
        ...

    def on_replace(self, message: Replace) -> None:
        """The coordinator wants this actor killed and another one started."""
        ...

    def on_failure(self, name: str, code: int, restarting: bool, child: Child) -> None:
        """An actor ended with `code`, which is not 0, before the run was over."""
        ...


class SupervisedEnd(msgspec.Struct, frozen=True):
    """End of a supervised run.

    `finished` is the coordinator's own message, None if it sent none. `failure` is the first
    failure that ended the run. `unrestarted` are the ends of the failed actors that were not
    started again, in order (causes before consequences), but for those that the run could go on
    without. With neither `finished` nor `failure`, the run was ended from outside.
    """

    finished: RunFinished | None
    failure: ActorFailed | None = None
    unrestarted: tuple[Exited, ...] = ()


class RunSupervisor:
    """Supervises one run, once.

    A rollout, reward or agents actor that fails is started again within its budget
    (`supervision.restarts` in `supervision.restart_window_s`), unless the run drains, or the actor
    would end so again (`repeated_ends`). The run goes on without a rollout actor that is not
    started again, as long as another one is left. A trainer or coordinator that fails ends this
    life of the run (`healing` begins another), and so does any other actor that is not started
    again. Standstills of this process extend deadlines.
    """

    def __init__(
        self,
        config: Config,
        actors: RunActors,
        observer: RunObserver,
        healed: Sequence[Exited] = (),
    ) -> None:
        """`healed` are the actors whose loss ended earlier lives; the coordinator is told of
        them."""
        self._config = config
        self._actors = actors
        self._observer = observer
        self._ends: dict[str, RepeatedEnds] = {}  # by name
        self._children: dict[str, tuple[int, Child]] = {}  # by name: the incarnation, and its child
        self._scope = trio.CancelScope()
        self._silence = Patience()  # with the coordinator
        self._grace = Patience()  # with the drain that was asked for
        # with a place for the drain, which is said once
        self._to_coordinator, self._messages = trio.open_memory_channel[Message](MESSAGES + 1)
        self._connected = trio.Event()
        self._over = trio.Event()
        self._ended = False  # no actor lives any more
        self._draining = False  # an actor that ends now is not replaced
        self._interrupted = False
        self._finished: RunFinished | None = None
        self._unrestarted: list[ActorEnd] = []
        self._unsaid: list[
            tuple[str, int, bool, Child]
        ] = []  # failures that others may have caused
        self._more_unsaid = trio.Event()
        self._missed = trio.Event()  # `_unrestarted` is not empty
        self._ended_ranks: set[str] = set()  # by this supervisor
        self._removed: set[str] = set()  # rollout actors that the run goes on without
        for lost in healed:
            self.tell(lost)

    @property
    def connected(self) -> bool:
        """True once the coordinator is ready for actors."""
        return self._connected.is_set()

    async def run(self) -> SupervisedEnd:
        """Supervise the run from its first actor to its end."""
        failure: ActorFailed | None = None
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await self._actors.open(nursery)
                    nursery.start_soon(self._supervise, "coordinator", 0)
                    self._silence.deadline = trio.current_time() + self._start_s
                    nursery.start_soon(self._watch_coordinator)
                    nursery.start_soon(self._end_with_its_grace)
                    nursery.start_soon(self._say_consequences)
                    await self._connected.wait()
                    for role, index in self._others():
                        nursery.start_soon(self._supervise, role, index)
                    await self._over.wait()
                    nursery.cancel_scope.cancel()
        except* ActorFailed as failures:
            failure = _first(failures)
        self._ended = True
        self._say_unsaid()
        if self._finished is not None and failure and is_consequence(failure.traceback):
            failure = None  # the coordinator has said what the cause is
        return SupervisedEnd(self._finished, failure, tuple(causes_first(self._unrestarted)))

    def interrupt(self) -> Interrupted:
        """Drain the run within `supervision.grace_s`. A second call, or one before the coordinator
        is ready, ends the run at once."""
        if self._ended and not self._interrupted:
            self._interrupted = True
            return "over"
        if self._interrupted or not self.connected:
            self.cancel()
            return "ends"
        self._interrupted = True
        self._to_coordinator.send_nowait(Drain())
        self._grace.deadline = trio.current_time() + self._config.supervision.grace_s
        return "drains"

    def cancel(self) -> None:
        """End the run at once, and kill its actors."""
        self._scope.cancel()

    def tell(self, message: Message) -> None:
        """Queue a message to the coordinator. A full queue drops it: a coordinator that reads so
        little will soon count as silent."""
        if self._messages.statistics().current_buffer_used < MESSAGES:
            self._to_coordinator.send_nowait(message)

    # ------------------------------------------------------------------------------------- actors

    def _others(self) -> Iterator[tuple[Role, int]]:
        """Every actor but the coordinator; a supervised run samples and judges nothing."""
        yield from (("trainer", index) for index in range(ranks_of(self._config.train)))
        if self._config.sft.run:
            return
        yield from (("rollout", index) for index in range(self._config.rollout.actors))
        yield from (("reward", index) for index in range(self._config.reward.actors))
        if self._config.agent.run:
            yield from (("agents", index) for index in range(self._config.agent.actors))

    async def _supervise(self, role: Role, index: int) -> None:
        """Keep one actor alive, within its budget."""
        name, limits = f"{role}-{index}", self._config.supervision

        def start(incarnation: int) -> Child:
            try:
                child = self._actors.start(role, index, incarnation)
            except (OSError, MemoryError) as error:  # the machine has no room for it now
                child = NotStarted(error)
            self._children[name] = incarnation, child
            return child

        def on_exit(name: str, code: int, restarting: bool) -> None:
            if self._finished is None and code:
                child = self._children[name][1]
                words, tail = words_of(code, child.tail()), child.tail()
                killed = code == -signal.SIGKILL and name in self._ended_ranks
                consequence = killed or is_consequence(tail)
                self._failed(consequence, name, code, restarting, child)
                exited = Exited(role, index, code, restarting, words)
                self.tell(exited)
                if not restarting and not self._spared(role, name):
                    end = ActorEnd(exited, trio.current_time(), consequence)
                    self._unrestarted.append(end)
                    self._missed.set()
                if role == "trainer":
                    self._end_ranks()

        budget = None  # the trainer's failure, and the coordinator's, ends this life of the run
        if role in ("rollout", "reward", "agents"):
            budget = RestartBudget(limits.restarts, limits.restart_window_s)
        # The end of a coordinator counts while the run drains, too, until it has said how it ended.
        needed = (
            (lambda: self._finished is None)
            if role == "coordinator"
            else (lambda: not self._draining)
        )
        ends = self._ends[name] = RepeatedEnds()
        await self._actors.ready(role)
        try:
            await supervise(
                name,
                start,
                budget=budget,
                on_exit=on_exit,
                still_needed=needed,
                final=ends.final,
            )
        except ActorFailed:
            if name in self._removed:
                return
            if role != "coordinator":
                with trio.move_on_after(limits.grace_s + LAST_WORDS_S):
                    await self._over.wait()
            raise
        if role == "coordinator" and self._finished is None:
            raise ActorFailed(name, 0, "")

    def _failed(
        self, consequence: bool, name: str, code: int, restarting: bool, child: Child
    ) -> None:
        """Have it shown how an actor ended; a consequence of another one's end after that one."""
        if consequence:
            self._unsaid.append((name, code, restarting, child))
            self._more_unsaid.set()
            return
        self._observer.on_failure(name, code, restarting, child)
        self._say_unsaid()

    async def _say_consequences(self) -> None:
        """Have each consequence shown when no cause has ended within the same second."""
        while True:
            await self._more_unsaid.wait()
            self._more_unsaid = trio.Event()
            await trio.sleep(SAME_S)
            self._say_unsaid()

    def _say_unsaid(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for name, code, restarting, child in unsaid:
            self._observer.on_failure(name, code, restarting, child)

    def _end_ranks(self) -> None:
        """Kill every rank of a trainer that has lost one: without it they would wait in a
        collective, and across a cut network no rank notices that another is gone."""
        for name, (_, child) in self._children.items():
            if name.startswith("trainer-"):
                self._ended_ranks.add(name)
                child.kill()

    def _spared(self, role: Role, name: str) -> bool:
        """True if the run goes on without this actor, which has failed for good."""
        if role != "rollout" or self._draining:
            return False
        if len(self._removed) + 1 < self._config.rollout.actors:
            self._removed.add(name)
        return name in self._removed

    # -------------------------------------------------------------------------------- coordinator

    async def _watch_coordinator(self) -> None:
        """Raise ActorFailed when the coordinator has sent nothing by `supervision.start_s`, or
        nothing more for `supervision.stall_s`: a process that hangs cannot report that by its own
        watchdog."""
        await self._silence.over()
        stall_s = self._config.supervision.stall_s
        silence = (
            f"nothing for {stall_s:g} s (supervision.stall_s); its process hangs"
            if self.connected
            else f"nothing within {self._start_s:g} s of its start (supervision.start_s)"
        )
        raise ActorFailed("coordinator-0", 0, silence)

    @property
    def _start_s(self) -> float:
        return max(START_S, self._config.supervision.start_s)

    async def _end_with_its_grace(self) -> None:
        """End the run when its time to drain is over."""
        await self._grace.over()
        self.cancel()

    def _renew_patience(self) -> None:
        self._silence.deadline = trio.current_time() + self._config.supervision.stall_s

    async def converse(self, link: Link) -> None:
        """Serve the coordinator's link, which the coordinator opens when it is ready for actors.

        Raises LinkError if another peer connects, or the coordinator a second time, and for a
        message that a coordinator does not send.
        """
        hello = await first_message(link, Hello)
        if hello.role != "coordinator" or self.connected:
            raise LinkError(
                "malformed", "only the coordinator may connect to the launcher, and only once"
            )
        self._connected.set()
        self._renew_patience()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, link)
            async for message, _ in link:
                match message:
                    case StatusUpdate():
                        self._renew_patience()
                        self._note_done(message)
                        self._observer.on_status(message)
                    case Replace():
                        self._replace(message)
                    case Draining():
                        self._draining = True
                    case RunFinished():
                        if message.heals == "lost":  # a link ends before its process is gone
                            with trio.move_on_after(CAUSE_S):
                                await self._missed.wait()
                        self._finished = message
                        break
                    case _:
                        raise LinkError(
                            "malformed",
                            f"the launcher does not understand {type(message).__name__}",
                        )
            nursery.cancel_scope.cancel()
        if self._finished is not None:
            self._over.set()

    def _note_done(self, update: StatusUpdate) -> None:
        for name, ends in self._ends.items():
            ends.progressed(update.done.get(role_of(name), 0))

    def _replace(self, message: Replace) -> None:
        """Kill an actor, whose supervision then starts another. An actor that has ended by itself
        meanwhile is left: its successor has started already."""
        self._observer.on_replace(message)
        incarnation, child = self._children[f"{message.role}-{message.index}"]
        if incarnation == message.incarnation:
            child.kill()

    async def _write(self, link: Link) -> None:
        async for message in self._messages:
            await link.send(message)


def words_of(code: int, output: str) -> str:
    """The last words of an actor that ended by an error of its own; else empty."""
    words = last_words(output)
    told = code == BAD_INPUT or (code > 0 and names_exception(words))
    return escaped(words, WORDS) if told else ""


def _first(failures: BaseExceptionGroup[ActorFailed]) -> ActorFailed:
    """The failure to show: the first of a group, which may hold groups, that is no consequence of
    another one; else the first."""
    found = list(_leaves(failures))
    return next((each for each in found if not is_consequence(each.traceback)), found[0])


def _leaves(failures: BaseExceptionGroup[ActorFailed]) -> Iterator[ActorFailed]:
    for failure in failures.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _leaves(failure)
        else:
            yield failure
