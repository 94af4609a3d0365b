"""An environment of OpenEnv (openenv-core 0.3), by its server:
`agent.run = "./openenv_game.py:Game"`. A reply is the action's
`message`, and what the model is told is the observation. A server takes
as many episodes at a time as `max_concurrent_envs` of its `create_app`;
`agent.concurrency` is the most that a run plays."""

import json
from collections.abc import Mapping
from typing import Any

from openenv.core import GenericEnvClient

from asyncrl.agents import Step

URL = "http://127.0.0.1:8000"


class Game:
    """One episode on that server."""

    async def reset(self, entry: Mapping[str, Any], seed: int) -> str:
        self.env = await GenericEnvClient(base_url=entry.get("url", URL)).connect()
        return json.dumps((await self.env.reset(seed=seed)).observation)

    async def step(self, reply: str) -> Step:
        now = await self.env.step({"message": reply})
        return Step(json.dumps(now.observation), float(now.reward or 0.0), now.done)

    async def close(self) -> None:
        await self.env.close()
