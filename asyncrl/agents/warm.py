"""Warming up of a process that forks the players of episodes, so that each has what it needs.

A client imports much at its first call, and computes the types of its requests and answers. So
a dummy episode of two turns is played here, as the agent would play it, and its gateway answers
every request alike. A process that is forked afterwards has all that, and spends 34 ms of a
core in place of 57 on a function's episode of five calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.agents.agent_episode import MODEL, AgentEpisode, EpisodeFacts
from asyncrl.agents.environments import Step, play
from asyncrl.agents.load_agent import play_async
from asyncrl.config.plugins import load_named

if TYPE_CHECKING:
    import openai

ANSWER = json.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "1"},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
WARM_S = 60.0
"""Seconds in which that must be done."""


def warm(run: str | Sequence[str]) -> None:
    """Play a dummy episode as the agent of `run` does, a function or an environment; a program has
    a client of its own. Leaves no thread behind. Raises OSError if there is no loopback, and
    TimeoutError."""
    if isinstance(run, str):
        environment = isinstance(load_named(run, "agent"), type)
        asyncio.run(asyncio.wait_for(_play(environment=environment), WARM_S))


class _TwoTurns:
    """An environment that is over after two replies."""

    def reset(self, entry: Mapping[str, Any], seed: int) -> str:
        self._turns = 0
        return ""

    def step(self, reply: str) -> Step:
        self._turns += 1
        return Step("", 0.0, done=self._turns == 2)


async def _play(*, environment: bool) -> None:
    async with await asyncio.start_server(_answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        facts = EpisodeFacts(
            prompt="",
            entry={},
            prompt_index=0,
            seed=0,
            attempt=0,
            base_url=f"http://127.0.0.1:{port}/sessions/dummy/v1",
            api_key="-",
            reward_key="-",
        )
        await (play(_TwoTurns(), facts) if environment else play_async(_two_turns, facts))


async def _two_turns(client: openai.AsyncOpenAI, episode: AgentEpisode) -> None:
    first = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": ""}]
    )
    reply = first.choices[0].message.content or ""
    await episode.reward(0.0)
    await client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": ""},
            {"role": "assistant", "content": reply},
            {"role": "user", "content": ""},
        ],
    )


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request of a connection with `ANSWER`."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").lower().split("\r\n")
            size = [int(line.split(":")[1]) for line in lines if line.startswith("content-length:")]
            await reader.readexactly(sum(size))
            writer.write(HEAD % len(ANSWER) + ANSWER)
            await writer.drain()
    except asyncio.IncompleteReadError:  # the client has all that it wanted
        writer.close()
