"""Agents of users: code that calls the model as often as it likes, and says what that was worth.

An agent is one of three things, all of them made one function by `load_agent`:

    async def solve(client: openai.AsyncOpenAI, episode: AgentEpisode) -> float | Mapping | None
    class Game: reset(entry, seed) -> str; step(reply) -> Step       environments.py
    ["python", "my_agent.py"]                                        agent_program.py

It runs under asyncio, one attempt at an episode in a process of its own
(`asyncrl.actors.agent_pool`), so nothing here knows trio. Invariant: a reward is a finite number,
and whatever is none is a failure that says so in a sentence, and never 0.
"""

from asyncrl.agents.agent_episode import MODEL, AgentEpisode, BlockingEpisode
from asyncrl.agents.agent_sandbox import with_model
from asyncrl.agents.environments import Step

__all__ = ["MODEL", "AgentEpisode", "BlockingEpisode", "Step", "with_model"]
