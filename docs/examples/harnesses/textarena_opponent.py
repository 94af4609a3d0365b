"""A game of TextArena (0.7) for two, against a model that is not trained: the run's
`[agent.models.opponent]`. `agent.run = "./textarena_opponent.py:solve"`, `task.name = "seeds"`."""

import textarena
from openai import AsyncOpenAI

from asyncrl.agents import MODEL, AgentEpisode

GAME = "TicTacToe-v0"


async def solve(client: AsyncOpenAI, episode: AgentEpisode) -> float:
    """The reward of seat 0, which the run's model plays."""
    game, over = textarena.make(GAME), False
    game.reset(num_players=2, seed=episode.seed)
    while not over:
        seat, seen = game.get_observation()
        said = await client.chat.completions.create(
            model=(MODEL, "opponent")[seat], messages=[{"role": "user", "content": seen}]
        )
        over, _ = game.step(action=said.choices[0].message.content or "")
    return float(game.close()[0][0])
