"""A taskset of `verifiers` (0.4) with several trained seats, as a game: each seat is the policy of
its name. `game.run = "./taskset_game.py:play"`; lines of its tasks are the task."""

import asyncio
import json
import os
from typing import Any

from asyncrl.agents import AgentEpisode

PYTHON, TASKSET = ".venv-verifiers/bin/python", "two_seats"


async def play(client: Any, episode: AgentEpisode) -> dict[str, float]:
    """The reward of each seat."""
    told = {
        "ASYNCRL_ENTRY": json.dumps(episode.entry),
        "ASYNCRL_SEED": str(episode.seed),
        "OPENAI_BASE_URL": episode.base_url,
        "OPENAI_API_KEY": episode.api_key,
    }
    command = [PYTHON, "-m", "asyncrl.agents.tasksets", "once", TASKSET]
    process = await asyncio.create_subprocess_exec(
        *command, env=os.environ | told, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the taskset ended with {process.returncode}; see its output")
    return dict(json.loads(output.splitlines()[-1])["reward"])
