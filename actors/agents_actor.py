"""The agents actor: plays episodes, and is the link between their agents and the coordinator.

Invariant: each attempt ends by `Played`, in bounded time, unless the coordinator or this actor ends
it first. A failed attempt has a named reason, and never a reward of zero.

    Play        facts for the agent, who plays in a process of its own, or elsewhere; then Played
    Reply       tokens for a call that waits for them
    StopPlaying the agent is killed, and nothing more is said of its attempt
    Drain       agents are killed; another attempt goes on with what they had

The actor needs no torch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import trio

from asyncrl.actors.agent_openings import AgentOpenings, AttemptOpenings
from asyncrl.actors.agent_pool import AgentAttempt, AgentClock
from asyncrl.actors.entry_images import EntryImages
from asyncrl.actors.episode_sockets import EpisodeSockets
from asyncrl.actors.errors import CoordinatorLost
from asyncrl.actors.hosted_games import HostedGames
from asyncrl.actors.reporting import Reporter
from asyncrl.agents.agent_episode import EpisodeFacts, messages_of
from asyncrl.agents.endings import AgentEnd, AgentFailed, no_facts
from asyncrl.agents.gateway.capability import capability
from asyncrl.agents.gateway.disk_waits import DiskWaits
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.seats import Seats
from asyncrl.messages import (
    Drain,
    Drained,
    Kept,
    NoSeat,
    Play,
    Played,
    Reply,
    Split,
    StopPlaying,
)
from asyncrl.runtime.ipc.link import Link

logger = logging.getLogger(__name__)

PromptFacts = Callable[[Split, int], Awaitable[tuple[str, dict[str, Any], list[dict[str, Any]]]]]
"""The text of a prompt, its entry in the task, and its messages where it has images."""


class Player(Protocol):
    """Has an agent play an episode (`agent_pool.AgentPool`, `elsewhere.ElsewherePool`)."""

    async def play(self, facts: EpisodeFacts, clock: AgentClock) -> AgentAttempt:
        """Play to the end, or to that of the clock. Cancelled, it ends the agent."""
        ...


class Asking(NamedTuple):
    """Questions of an agents actor to its coordinator in a game: for seats, if it is a guest's, and
    whether the disk has what was said."""

    keeping: DiskWaits
    seats: Seats | None


class EpisodePlayer:
    """Plays the episodes of one actor. Agents find the gateway at `url`; an agent may work for
    `episode_s` seconds; with `sockets`, sandboxed programs find it too, with `images` agents open
    sandboxes, with `openings` agents open things outside, and with `games` other runs take
    part. `ended` is called for each attempt
    that ended by itself."""

    def __init__(
        self,
        player: Player,
        sessions: PlayedSessions,
        prompt: PromptFacts,
        reporter: Reporter,
        *,
        url: str,
        episode_s: float,
        sockets: EpisodeSockets | None = None,
        images: EntryImages | None = None,
        openings: AgentOpenings | None = None,
        games: HostedGames | None = None,
        asking: Asking | None = None,
        ended: Callable[[Play, AgentAttempt], None] = lambda play, attempt: None,
    ) -> None:
        self._player, self._sessions = player, sessions
        self._prompt, self._reporter = prompt, reporter
        self._url, self._episode_s, self._sockets = url, episode_s, sockets
        self._openings, self._ended, self._images = openings, ended, images
        self._games, self._asking = games, asking
        self._playing: dict[tuple[int, int], tuple[PlayedSession, trio.CancelScope]] = {}

    def begin(self, play: Play, nursery: trio.Nursery) -> None:
        """Begin an attempt, which is played in the nursery, and ends there."""
        clock, scope = AgentClock(self._episode_s), trio.CancelScope()
        things: AttemptOpenings | None = None

        def paused() -> AbstractContextManager[None]:
            if things is not None:
                things.called()
            return clock.paused()

        session = self._sessions.open(play, paused, clock.heard.set)
        if self._openings is not None:
            things = self._openings.begin(session.name, clock)
        self._playing[play.rollout, play.attempt] = session, scope
        notes = "" if things is None else str(things.folder)
        nursery.start_soon(self._play, session, clock, scope, notes)

    async def _play(
        self, session: PlayedSession, clock: AgentClock, scope: trio.CancelScope, notes: str
    ) -> None:
        try:
            with scope:
                async with AsyncExitStack() as opened:
                    socket = ""
                    if self._sockets is not None:
                        socket = await opened.enter_async_context(self._sockets.open(session.name))
                    try:
                        facts = await self._facts(session, socket, notes)
                    except Exception as error:  # noqa: BLE001 (a task's code may raise anything)
                        attempt = AgentAttempt(no_facts(error), clock.spent_s, "")
                    else:
                        attempt = await self._ready(session, facts, clock)
                self._ended(session.play, attempt)
                self._say(session, attempt)
        finally:
            del self._playing[session.play.rollout, session.play.attempt]
            self._sessions.close(session)
            if self._openings is not None:
                await self._openings.end(session.name)

    async def _ready(
        self, session: PlayedSession, facts: EpisodeFacts, clock: AgentClock
    ) -> AgentAttempt:
        """Play the attempt, once what its sandboxes need is there; its clock begins then."""
        if self._images is not None and (wrong := await self._images.wrong(facts.entry)):
            return AgentAttempt(wrong, clock.spent_s, "")
        play = partial(self._player.play, facts, clock)
        return await (play() if self._games is None else self._games.play(session, play))

    def stop(self, message: StopPlaying) -> None:
        """End an attempt, if it is played."""
        if (playing := self._playing.get((message.rollout, message.attempt))) is not None:
            _end(*playing)

    def stop_all(self) -> None:
        """End every attempt."""
        for playing in self._playing.values():
            _end(*playing)

    def hear(self, message: Kept | NoSeat) -> None:
        """Take an answer about a game."""
        if self._asking is None:
            raise ValueError(f"nothing was asked that {type(message).__name__} answers")
        if isinstance(message, Kept):
            self._asking.keeping.take(message)
        elif self._asking.seats is not None:
            self._asking.seats.refuse(message)

    async def _facts(self, session: PlayedSession, socket: str, notes: str) -> EpisodeFacts:
        play, key = session.play, self._sessions.key
        prompt, entry, messages = await self._prompt(play.split, play.prompt_index)
        facts = EpisodeFacts(
            prompt=prompt,
            entry=entry,
            prompt_index=play.prompt_index,
            seed=play.seed,
            attempt=play.attempt - 1,
            base_url=f"{self._url}/sessions/{session.name}/v1",
            api_key=capability(key, session.name, "call"),
            reward_key=capability(key, session.name, "reward"),
            socket=socket,
            boxes=None if self._images is None else self._images.origin,
            opened=notes,
            messages=messages,
        )
        session.messages = messages_of(facts)
        return facts

    def _say(self, session: PlayedSession, attempt: AgentAttempt) -> None:
        play, end = session.play, _outcome(session, attempt.end)
        if _cut(session, end) and session.table is None:
            self._reporter.count("episodes_cut")
            session.played()
            return
        if isinstance(end, AgentFailed):
            logger.warning(
                "the agent of rollout %d failed in attempt %d (%s): %s",
                play.rollout,
                play.attempt,
                end.kind,
                end.text,
            )
            kind = end.kind.replace(" ", "_")
            self._reporter.count(f"agents_failed_{kind}")
            then = _THEN.get(end.kind, _AGAIN)
            self._sessions.say(Played(play.rollout, play.attempt, "", kind, end.text, then))
            return
        if end.reward is not None:
            reward = end.reward if isinstance(end.reward, float) else math.fsum(end.reward.values())
            session.reward(reward, None)
        self._reporter.count("episodes")
        session.played()


_AGAIN: Literal["again"] = "again"
_THEN: dict[str, Literal["again", "wait", "bury"]] = {
    "left": "wait",
    "no seat": "wait",
    "game given up": "bury",
}
"""The work that is due after an attempt that failed by another run."""


def _end(session: PlayedSession, scope: trio.CancelScope) -> None:
    """End an attempt silently: nothing more is sent of it, not even that its clients, killed with
    the agent, have left."""
    session.end()
    scope.cancel()


def _cut(session: PlayedSession, end: AgentEnd) -> bool:
    """True if an agent ended because its episode reached its budget, as harnesses do that take a
    cut answer for an error: like a response that is cut at its budget, it has not failed, and the
    task's verifier judges its last reply."""
    ended = isinstance(end, AgentFailed) and end.kind in ("raised", "exit")
    return ended and (session.full or session.cut) and bool(session.answered)


def _outcome(session: PlayedSession, end: AgentEnd) -> AgentEnd:
    """The end of an attempt. An agent that returns a reward must not have given another for the
    episode."""
    if isinstance(end, AgentFailed) or end.reward is None or not session.rewarded:
        return end
    return AgentFailed(
        "two rewards", "the agent gave the episode a reward, and returned another; do one of these"
    )


async def agents_actor(
    link: Link,
    episodes: EpisodePlayer,
    sessions: PlayedSessions,
    reporter: Reporter,
) -> None:
    """Serve the coordinator until it drains this actor."""
    async with trio.open_nursery() as saying:
        saying.start_soon(sessions.send, link)
        async with trio.open_nursery() as reports:
            reports.start_soon(reporter.run, link)
            async with trio.open_nursery() as playing:
                async for message, buffers in link:
                    match message:
                        case Play():
                            episodes.begin(message, playing)
                        case Reply():
                            sessions.take(message, *buffers)
                        case StopPlaying():
                            episodes.stop(message)
                        case Kept() | NoSeat():
                            episodes.hear(message)
                        case Drain():
                            break
                        case _:
                            raise ValueError(
                                f"an agents actor does not understand {type(message).__name__}"
                            )
                else:
                    raise CoordinatorLost("an agents actor")
                episodes.stop_all()
            reports.cancel_scope.cancel()
        sessions.hush()
    await link.send(Drained())
