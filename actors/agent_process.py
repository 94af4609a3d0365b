"""The processes of users' agents, which can be killed.

Invariant: each attempt at an episode has a process of its own, which no earlier attempt has used.
So one that hangs, crashes or leaves state behind does not affect others, and every attempt begins
in the same state: the same modules, and random generators seeded with the episode's seed.

The nursery process (`worker_process.py`) of agents imports the agent once. The first frame on its
control socket is `AgentOpening`. It is answered by a u32, 0 where the agent is there; else that
many bytes follow, a sentence that says why not. A worker reads `EpisodeFacts` and writes one
`AgentEnd`, and then `AgentClosed` for what its agent's `close()` did. Beside its socket it gets
another one, which is its standard output and error. SIGTERM ends it before its agent ends: then it
closes what is to be closed, too.

There is no heartbeat: a worker that died ends its socket, and one that hangs is ended by its
episode's clock (`agent_pool.AgentClock`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper

import msgspec

from asyncrl.actors.worker_process import LENGTH, frame, receive, serve_control
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.closing import CLOSE_S, Closing, ToldToEnd
from asyncrl.agents.endings import AgentClosed, played, raised
from asyncrl.agents.load_agent import Agent, load_agent
from asyncrl.agents.warm import warm
from asyncrl.config.errors import ConfigError
from asyncrl.sandbox import syscalls
from asyncrl.sandbox.forks import PlainForks
from asyncrl.sandbox.opened import VARIABLE

SENTENCE_BYTES = 2**14
"""Bytes of the longest error sentence about an agent."""


GRACE_S = CLOSE_S + 1.0
"""Seconds from SIGTERM to SIGKILL for an attempt that is ended from outside, and for what it
started."""


NOT_CLOSED = "it was killed before its close() had returned"
"""The failure if a worker ends while it closes things."""


class AgentOpening(msgspec.Struct, frozen=True, array_like=True):
    """The first frame on the control socket: `agent.run`, and the `agent.paths` that a program sees
    in the sandbox; None where there is no sandbox. `grace_s` as GRACE_S."""

    run: str | tuple[str, ...]
    paths: tuple[str, ...] | None = None
    grace_s: float = GRACE_S


def play_episode(sockets: Sequence[socket.socket], agent: Agent) -> None:
    """Run a worker: play one episode, and report how it ended."""
    sock, output = sockets
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what the agent starts inherits it
    # orphans of its programs become children of this process, not of the nursery, which they would
    # end with any other worker
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    facts = receive(sock, EpisodeFacts)
    if facts is None:
        return
    _seed(facts.seed)
    if facts.opened:
        os.environ[VARIABLE] = facts.opened

    closing = Closing()
    try:
        asyncio.run(_play(sock, agent, facts, closing))
    except BaseException as error:  # noqa: BLE001 SystemExit in a task ends the loop
        _say(sock, raised(error))
        if not closing.begun:
            _say(sock, AgentClosed(asyncio.run(closing.close()), over=True))


async def _play(sock: socket.socket, agent: Agent, facts: EpisodeFacts, closing: Closing) -> None:
    """Play, say how that ended, close what is to be closed, and say how that went: all of it here,
    because the loop's end waits for threads that the agent left. SIGTERM ends the playing."""
    playing, loop = asyncio.current_task(), asyncio.get_running_loop()
    told = closed = False

    def told_to_end(number: int, frame: object) -> None:
        nonlocal told
        told = True
        if closed:
            os._exit(0)
        if closing.begun:
            return
        if (working := asyncio.current_task(loop)) is not playing and playing is not None:
            playing.cancel()
            loop.call_soon_threadsafe(lambda: None)  # it may wait for something else
        if working is not None:
            raise ToldToEnd

    signal.signal(signal.SIGTERM, told_to_end)
    try:
        _say(sock, await played(agent, facts, closing))
    except (asyncio.CancelledError, ToldToEnd) as error:
        if not told:
            _say(sock, raised(error))
    if closing.needed:
        _say(sock, AgentClosed(NOT_CLOSED, over=False))
    _say(sock, AgentClosed(await closing.close(), over=True))
    closed = True
    if told:  # no thread of a blocking agent is waited for
        sys.stdout.flush()
        os._exit(0)


def _say(sock: socket.socket, message: msgspec.Struct) -> None:
    """Send a message, unless the actor has left, with which this process ends."""
    with suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(frame(message))


def _seed(seed: int) -> None:
    """Seed the generators that agents use: a fork has those of its parent, all the same."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


def main(descriptor: int) -> None:
    """Run the nursery process. Standard output becomes standard error, so that output of imported
    modules does not corrupt a protocol."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    control = socket.socket(fileno=descriptor)
    opening = receive(control, AgentOpening)
    if opening is None:
        return
    try:
        agent = load_agent(opening.run, opening.paths)
        if (threads := threading.active_count()) > 1:
            raise ConfigError(
                f"the agent {opening.run!r} cannot be forked, because {threads - 1} threads run "
                "once it is imported; start them in the agent instead."
            )
    except ConfigError as error:
        text = str(error).encode()[:SENTENCE_BYTES]
        control.sendall(LENGTH.pack(len(text)) + text)
        return
    warm(opening.run)
    gc.freeze()  # the collector would touch, and so copy, the pages that workers share
    forks = PlainForks(close=[control.fileno()], grace_s=opening.grace_s)
    control.sendall(LENGTH.pack(0))
    serve_control(control, forks, lambda sockets: play_episode(sockets, agent))


if __name__ == "__main__":
    main(int(sys.argv[1]))
