"""User code that calls the model any number of times, and returns a reward.

An agent has one of three forms, which `load_agent` turns into one function:

    async def solve(client: openai.AsyncOpenAI, episode: AgentEpisode) -> float | Mapping | None
    class Game: reset(entry, seed) -> str; step(reply) -> Step       environments.py
    ["python", "my_agent.py"]                                        agent_program.py

It runs under asyncio, one attempt at an episode in a process of its own
(`asyncrl.actors.agent_pool`), so nothing here knows trio. Invariant: a reward is a finite number,
any other value is a failure with a sentence, never 0.

Names are imported on first use: `asyncrl.agents.tasksets` runs in an environment without asyncrl's
dependencies."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.agents.agent_episode import MODEL, AgentEpisode, BlockingEpisode
    from asyncrl.agents.agent_sandbox import with_model
    from asyncrl.agents.call_role import as_role
    from asyncrl.agents.environments import Step
    from asyncrl.agents.shown import Shown, newest_images

_HOME_OF = {
    "MODEL": "agent_episode",
    "AgentEpisode": "agent_episode",
    "BlockingEpisode": "agent_episode",
    "Shown": "shown",
    "Step": "environments",
    "as_role": "call_role",
    "newest_images": "shown",
    "with_model": "agent_sandbox",
}

__all__ = [
    "MODEL",
    "AgentEpisode",
    "BlockingEpisode",
    "Shown",
    "Step",
    "as_role",
    "newest_images",
    "with_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
