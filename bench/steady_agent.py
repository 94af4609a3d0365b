"""The agent of `kill_agents.py`: a few calls, each with what a tool said to the one before. Each
attempt does the same, as long as it is answered with the same; so what a later attempt asks the
model shows if an answer or a result of the tool was lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

CALLS, TOKENS = 4, 8
"""Calls of an episode, and the most tokens of each."""
TOOL_S = 0.02


async def solve(client: Any, episode: Any) -> float:
    """Use a tool that says something else each time that it is asked."""
    return await _solve(client, episode, lambda turn: random.SystemRandom().randrange(1000))


async def repeatable(client: Any, episode: Any) -> float:
    """Use a tool that says the same in every run."""
    return await _solve(
        client, episode, lambda turn: random.Random(f"{episode.seed}/{turn}").randrange(1000)
    )


async def _solve(client: Any, episode: Any, draw: Callable[[int], int]) -> float:
    async def tool(turn: int) -> int:
        await asyncio.sleep(TOOL_S)
        return draw(turn)

    messages, score = [{"role": "user", "content": episode.prompt}], 0
    for turn in range(CALLS):
        answer = await client.chat.completions.create(
            model="policy", messages=messages, max_tokens=TOKENS
        )
        reply = answer.choices[0].message.content or ""
        said = await episode.once(f"turn {turn}", partial(tool, turn))
        score += sum(map(ord, reply)) % 7
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": str(said)},
        ]
    return score / (6 * CALLS)
