"""Users' agents, each attempt at an episode in a worker process of its own.

Invariant: each attempt ends, in bounded time, by its agent's result or by a named failure. No
failure affects another attempt, and none is a reward of zero.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import trio

from asyncrl.actors.agent_process import GRACE_S, AgentOpening
from asyncrl.actors.agent_starts import AgentStart, AgentStarts
from asyncrl.actors.worker_forks import ENDING_S, ForkedWorker, WorkerForks, exactly, open_forks
from asyncrl.actors.worker_process import LENGTH, frame, length
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.agent_rewards import WrongReward, as_outcome
from asyncrl.agents.closing import CLOSE_S
from asyncrl.agents.endings import (
    CHARACTERS,
    AgentClosed,
    AgentEnd,
    AgentEnded,
    AgentFailed,
    failed,
    no_facts,
)
from asyncrl.config.errors import ConfigError
from asyncrl.escape import escaped, escaped_lines
from asyncrl.messages import StartCounts
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.runtime.processes.process import isolated

OPENING_S = 120.0
"""Seconds within which an agent must be imported."""
END_BYTES = 2**16
"""Bytes of the largest frame of a worker."""
OUTPUT_BYTES = 2**14
"""Bytes of an agent's output that are kept: the last ones."""
_CLOSED: msgspec.msgpack.Decoder[AgentEnd | AgentClosed] = msgspec.msgpack.Decoder(
    AgentEnd | AgentClosed
)
_END: msgspec.msgpack.Decoder[AgentEnd] = msgspec.msgpack.Decoder(AgentEnd)


Told = Callable[[str, str], None]
"""Is told of what went wrong beside an attempt, or of what was made good (then the sentence is
empty): the name of its counter, and a sentence."""


class AgentClock:
    """The agent's own seconds of an attempt, at most `limit_s` of them. While a call of it is
    answered (`paused`, also several at a time) the clock stops."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.heard = trio.Event()
        """Set once the gateway has heard of the agent."""
        self._spent = 0.0
        self._since: float | None = None
        self._calls = 0
        self._scope: trio.CancelScope | None = None

    @property
    def spent_s(self) -> float:
        """Seconds so far."""
        return self._spent + (0.0 if self._since is None else trio.current_time() - self._since)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock in the block, in which the agent waits for the model."""
        self._calls += 1
        self._settle()
        try:
            yield
        finally:
            self._calls -= 1
            self._settle()

    @contextmanager
    def running(self) -> Iterator[trio.CancelScope]:
        """Run the clock in the block, which is cancelled when the agent has worked for too long."""
        with trio.CancelScope() as self._scope:
            self._settle()
            try:
                yield self._scope
            finally:
                self._scope = None
                self._settle()

    def _settle(self) -> None:
        now = trio.current_time()
        if self._since is not None:
            self._spent += now - self._since
        runs = self._scope is not None and not self._calls
        self._since = now if runs else None
        if self._scope is not None:
            self._scope.deadline = now + self.limit_s - self._spent if runs else math.inf


class AgentAttempt(msgspec.Struct, frozen=True):
    """The end of an attempt, the seconds that its agent worked, and the end of its output,
    printable."""

    end: AgentEnd
    seconds: float
    output: str


class AgentPool:
    """Plays episodes, each in a fresh worker. It is made by `open_agent_pool`. The caller bounds
    the number of episodes at a time, and so the number of workers; `starts` bounds those of a
    program that start."""

    def __init__(
        self,
        forks: WorkerForks,
        waits: Waits,
        *,
        most_s: float,
        starts: AgentStarts | None,
        grace_s: float,
        told: Told,
    ) -> None:
        self._forks, self._waits, self._most_s, self._starts = forks, waits, most_s, starts
        self._grace_s, self._told = grace_s, told

    @property
    def starts(self) -> StartCounts | None:
        """Count the attempts of a program that wait and start; None for another agent."""
        return None if self._starts is None else self._starts.counts

    async def play(self, facts: EpisodeFacts, clock: AgentClock) -> AgentAttempt:
        """Play an episode to its end, or to that of its clock, which runs once it has started.
        Cancelled, it kills the agent and all its processes. Raises WorkersLost."""
        if self._starts is None:
            return await self._play(facts, clock, None)
        async with self._starts.start(f"prompt {facts.prompt_index}") as start:
            return await self._play(facts, clock, start)

    async def _play(
        self, facts: EpisodeFacts, clock: AgentClock, start: AgentStart | None
    ) -> AgentAttempt:
        ours, theirs = socket.socketpair()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with stream:
            with theirs:
                worker = await self._forks.start(theirs)
            output, words = bytearray(), _LastWords()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_hear, stream, output)
                    if start is not None:
                        start.pid = worker.number
                        nursery.start_soon(_until_heard, clock, start)
                    end = await self._end(worker, facts, clock)
                    if not (isinstance(end, AgentFailed) and end.kind in ("timeout", "crashed")):
                        with trio.move_on_after(CLOSE_S + ENDING_S):
                            await words.hear(worker.stream)
                    nursery.cancel_scope.cancel()
            finally:
                await self._bury(worker, stream, output, words)
                if words.wrong:
                    said = escaped(" ".join(words.wrong.split()), CHARACTERS)
                    self._told(
                        "agents_close_failed", f"close() of the agent of {facts.session}: {said}"
                    )
        text = escaped_lines(output.decode(errors="replace"))
        if isinstance(end, AgentFailed) and end.kind == "crashed" and text.strip():
            last = text.strip().rpartition("\n")[2]
            end = failed("crashed", f"{end.text}; the last that it said: {last}")
        return AgentAttempt(end, clock.spent_s, text)

    async def _bury(
        self, worker: ForkedWorker, stream: trio.SocketStream, output: bytearray, words: _LastWords
    ) -> None:
        """End an agent and what it started, within its grace, and hear its last words and its last
        output, until all writers have ended."""
        with trio.CancelScope(shield=True):
            try:
                await self._forks.end(worker)
                with trio.move_on_after(self._grace_s + ENDING_S):
                    await words.hear(worker.stream)
                    await _hear(stream, output)
            finally:
                await self._forks.close(worker)

    async def _end(self, worker: ForkedWorker, facts: EpisodeFacts, clock: AgentClock) -> AgentEnd:
        end: AgentEnd = failed("timeout", f"the agent had the ball for {clock.limit_s:g} s")
        try:
            with (
                self._waits.on(
                    "agent", owner=f"prompt {facts.prompt_index}", deadline_s=self._most_s
                ),
                clock.running(),
            ):
                end = await _ask(worker.stream, facts)
        except WaitExpired:
            return failed("timeout", f"the episode took {self._most_s:g} s, its calls included")
        return end


@asynccontextmanager
async def open_agent_pool(
    run: str | tuple[str, ...],
    waits: Waits,
    starts: AgentStarts,
    *,
    most_s: float,
    paths: tuple[str, ...] | None = None,
    grace_s: float = GRACE_S,
    told: Told = lambda counter, sentence: None,
) -> AsyncIterator[AgentPool]:
    """Open the agent of `agent.run`. An attempt takes at most `most_s` seconds, its calls included.
    `starts` are those of this actor. With `paths` a program is run in the sandbox, and sees them.
    An agent that is ended from outside has `grace_s` seconds for it. `told` is told of each
    `close()` that failed.
    None of its processes outlives the block. Raises ConfigError where there is no such agent, and
    WorkersLost."""
    environment = isolated(os.environ)
    module, ending_s = "asyncrl.actors.agent_process", grace_s + ENDING_S
    async with open_forks(module, waits, "agents", environment, ending_s) as forks:
        wrong = await forks.open(AgentOpening(run, paths, grace_s), deadline_s=OPENING_S)
        if wrong:
            raise ConfigError(escaped(wrong.decode(errors="replace")))
        # what is a function is imported already: a start costs milliseconds
        program = None if isinstance(run, str) else starts
        yield AgentPool(forks, waits, most_s=most_s, starts=program, grace_s=grace_s, told=told)


async def _until_heard(clock: AgentClock, start: AgentStart) -> None:
    """Report the first request of an agent."""
    await clock.heard.wait()
    start.called()


async def _hear(stream: trio.SocketStream, output: bytearray) -> None:
    """Read output to its end, and keep the last of it."""
    try:
        while piece := await stream.receive_some(OUTPUT_BYTES):
            output += piece
            del output[:-OUTPUT_BYTES]
    except trio.BrokenResourceError:  # it was killed with unread bytes
        pass


class _LastWords:
    """A worker's words on what its agent closes: `wrong` is what went wrong by then, "" if
    nothing did; `over` is True once it has ended."""

    def __init__(self) -> None:
        self.wrong, self.over = "", False

    async def hear(self, stream: trio.SocketStream) -> None:
        """Hear it to its end. What is said of the end of the attempt is left out: the worker was
        told to end."""
        try:
            while not self.over:
                head = await exactly(stream, LENGTH.size)
                body = None if head is None else await exactly(stream, length(head, END_BYTES))
                if body is None:
                    self.over = True
                elif isinstance(said := _CLOSED.decode(body), AgentClosed):
                    self.wrong, self.over = said.wrong, said.over
        except (trio.BrokenResourceError, ValueError, RecursionError):
            self.over = True


async def _ask(stream: trio.SocketStream, facts: EpisodeFacts) -> AgentEnd:
    """Have the worker play, and read the result. A user's code is in the same process, so its
    messages are checked as untrusted."""
    try:
        asked = frame(facts)
    except Exception as error:  # noqa: BLE001 (an entry may hold what no message can)
        return no_facts(error)
    try:
        await stream.send_all(asked)
        head = await exactly(stream, LENGTH.size)
        body = None if head is None else await exactly(stream, length(head, END_BYTES))
        if body is None:
            return failed("crashed", "the agent's process died")
        end = _END.decode(body)
        if isinstance(end, AgentFailed):
            return failed(end.kind, end.text)
        return AgentEnded(as_outcome(end.reward))
    except trio.BrokenResourceError:
        return failed("crashed", "the agent's process died")
    except WrongReward as error:
        return failed(error.kind, str(error))
    except (ValueError, RecursionError):
        return failed("crashed", "the agent's process said what is no end of an episode")
