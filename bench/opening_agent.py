"""The agent of `leave_nothing.py`: `steady_agent.py`, inside of a container of `docker_double.py`.
A file of the folder DOUBLE has a line when an attempt begins, and one when it ends by itself."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from typing import Any

import steady_agent


async def solve(client: Any, episode: Any) -> float:
    """Play inside of a container. Some attempts end it by themselves before their end."""
    name = f"asyncrl-{episode.session}-{secrets.token_hex(4)}"
    _say("begin", name)
    async with episode.opened("container", name, "docker"):
        await _docker("run", "--detach", "--name", name, "image")
        reward = await steady_agent.solve(client, episode)
        if episode.seed % 4 == 0:
            await _docker("rm", "--force", name)
    _say("end", name)
    return reward


async def _docker(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "docker", *words, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait():
        raise RuntimeError(f"docker {words[0]} failed")


def _say(word: str, name: str) -> None:
    with Path(os.environ["DOUBLE"], "attempts").open("a") as file:
        file.write(f"{word} {name}\n")
