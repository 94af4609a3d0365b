"""An agents actor with its gateway, before a coordinator that a test plays: the actor's end of the
link is served, and the test has the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio
from memory_link import memory_links

from asyncrl.actors.agent_openings import AgentOpenings
from asyncrl.actors.agent_pool import AgentAttempt, AgentClock
from asyncrl.actors.agent_starts import AgentStarts
from asyncrl.actors.agents_actor import EpisodePlayer, PromptFacts, agents_actor
from asyncrl.actors.reporting import Reporter
from asyncrl.actors.start_limit import StartLimit
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.endings import AgentEnd
from asyncrl.agents.gateway.app import application
from asyncrl.agents.gateway.gateway import Gateway
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.offers import Offers
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.serve import serve
from asyncrl.bundled.bundled_model import END_ID, VOCABULARY
from asyncrl.messages import Ask, Drain, Drained, Message, Play, Reply, Report, Split
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.sandbox.enders import Enders
from asyncrl.tasks.text import Tokenizer

KEY = b"the-key-of-this-run"
CONTEXT = 400

Agent = Callable[[EpisodeFacts], Awaitable[AgentEnd]]


class TaskPlayer:
    """Plays an agent in a task of this process, by its clock."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def play(self, facts: EpisodeFacts, clock: AgentClock) -> AgentAttempt:
        with clock.running():
            return AgentAttempt(await self._agent(facts), clock.spent_s, "")
        raise AssertionError("the agents of these tests end in time")


class ScriptedCoordinator:
    """The coordinator's end of an agents actor's link."""

    def __init__(self, link: Link, url: str) -> None:
        self._link, self.url = link, url
        self.heard: list[Message] = []

    async def play(self, rollout: int = 17, attempt: int = 1, **more: Any) -> Play:
        fields: dict[str, Any] = {
            "split": "train",
            "prompt_index": 3,
            "seed": 5,
            "max_new_tokens": 100,
            "temperature": 1.0,
            "notes": {},
        }
        play = Play(rollout=rollout, attempt=attempt, **{**fields, **more})
        await self._link.send(play)
        return play

    async def hear(self) -> tuple[Message, bytes]:
        """The next message that is no report, and its first buffer."""
        while True:
            message, buffers = await self._link.receive()
            if not isinstance(message, Report):
                self.heard.append(message)
                return message, bytes(buffers[0]) if buffers else b""

    async def ask(self) -> tuple[Ask, str]:
        """The next message, which is a call, and the text of its context."""
        message, buffer = await self.hear()
        assert isinstance(message, Ask), message
        ids = np.frombuffer(buffer, np.int32)
        return message, "".join(chr(i) if i < 256 else "$" for i in ids.tolist())

    async def reply(self, ask: Ask, text: str, finish: str = "stop", refused: str = "") -> None:
        """Answer a call; `$` is the end of the text."""
        ids = [END_ID if character == "$" else ord(character) for character in text]
        await self._link.send(
            Reply(ask.rollout, ask.attempt, ask.number, 7, finish, refused),  # type: ignore[arg-type]
            np.array(ids, np.int32).tobytes(),
            np.full(len(ids), -0.5, np.float32).tobytes(),
        )

    async def send(self, message: Message) -> None:
        await self._link.send(message)


@asynccontextmanager
async def played(
    tokenizer: Tokenizer,
    player: Any,
    *,
    offers: Offers | None = None,
    episode_s: float = 300.0,
    prompts: PromptFacts | None = None,
    enders: Enders | None = None,
) -> AsyncIterator[ScriptedCoordinator]:
    """The actor, with agents that `player` plays, and its coordinator. At the end it is drained.
    With `enders` agents open things."""
    waits, ours, theirs = Waits(), *memory_links()
    sessions, reporter = PlayedSessions(KEY), Reporter(Waits())
    settings = Settings(model="policy", context_tokens=CONTEXT, vocabulary=VOCABULARY)
    gateway = Gateway(sessions, tokenizer, settings, waits)
    starts, openings = AgentStarts(StartLimit(2), waits), None
    if enders is not None:
        openings = AgentOpenings(0, enders, starts, lambda counter, _: reporter.count(counter))

    async def prompt(split: Split, prompt_index: int) -> tuple[str, dict[str, Any], list[Any]]:
        await trio.lowlevel.checkpoint()
        return f"{split} {prompt_index}?", {"answer": "42"}, []

    async def attend(*, task_status: trio.TaskStatus[str]) -> None:
        app = application(gateway, sessions, offers, openings)
        await serve(app, sessions.known, waits, task_status=task_status)

    async def drained() -> None:
        await agents_actor(theirs, episodes, sessions, reporter)
        ended.set()

    ended = trio.Event()
    async with ours, theirs, trio.open_nursery() as nursery:
        url = await nursery.start(attend)
        nursery.start_soon(starts.run)
        episodes = EpisodePlayer(
            *(player, sessions, prompts or prompt, reporter),
            url=url,
            episode_s=episode_s,
            openings=openings,
        )
        nursery.start_soon(drained)
        coordinator = ScriptedCoordinator(ours, url)
        yield coordinator
        await coordinator.send(Drain())
        while not isinstance((await coordinator.hear())[0], Drained):
            pass
        await ended.wait()
        nursery.cancel_scope.cancel()
