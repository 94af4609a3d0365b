"""An agent that is a program of its own, in any language: `agent.run = ["python", "my_agent.py"]`.

It finds in its environment what an `AgentEpisode` has:

    OPENAI_BASE_URL, OPENAI_API_KEY     what the official clients read by themselves
    ASYNCRL_PROMPT, ASYNCRL_ENTRY       the prompt; the task's entry, as JSON
    ASYNCRL_PROMPT_INDEX, ASYNCRL_SEED, ASYNCRL_ATTEMPT
    ASYNCRL_SESSION_URL, ASYNCRL_REWARD_KEY     for notes, and for rewards of turns

Its reward is the last line of its output, `{"reward": 1.0}` or `{"reward": {"right": 1.0}}`; where
that line says none, the task's verifier judges the last reply. It is not posted, because so any
program can say it that can print, and because exit code and reward come together: a program that
fails after its reward has none. Another exit code than 0 is a failure, which shows the end of what
it said on standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

from asyncrl.agents.agent_episode import EpisodeFacts

HEARD = 2**16
"""Bytes of a program's output that are kept: the last ones."""
LINES = 3
"""Lines of standard error that a failure shows."""


class ProgramFailed(Exception):
    """The program ended with an error; the text says which."""


def environment_of(facts: EpisodeFacts) -> dict[str, str]:
    """The variables that a program is given, beside those of this process."""
    return {
        "OPENAI_BASE_URL": facts.base_url,
        "OPENAI_API_KEY": facts.api_key,
        "ASYNCRL_PROMPT": facts.prompt,
        "ASYNCRL_ENTRY": json.dumps(facts.entry),
        "ASYNCRL_PROMPT_INDEX": str(facts.prompt_index),
        "ASYNCRL_SEED": str(facts.seed),
        "ASYNCRL_ATTEMPT": str(facts.attempt),
        "ASYNCRL_SESSION_URL": facts.session_url,
        "ASYNCRL_REWARD_KEY": facts.reward_key,
    }


async def run_program(argv: Sequence[str], facts: EpisodeFacts) -> Any:
    """Run a program to its end, and return the reward that it said; None where it said none. Raises
    ProgramFailed, and OSError where it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment_of(facts)},
    )
    assert process.stdout and process.stderr
    said, errors, code = await asyncio.gather(
        _last(process.stdout), _last(process.stderr), process.wait()
    )
    if code:
        ended = f"exit code {code}" if code > 0 else f"signal {-code}"
        lines = errors.decode(errors="replace").strip().splitlines()[-LINES:]
        raise ProgramFailed(" / ".join([ended, *lines]))
    return _reward(said.decode(errors="replace"))


async def _last(stream: asyncio.StreamReader) -> bytes:
    """Read to the end, and return the last bytes."""
    kept = b""
    while piece := await stream.read(HEARD):
        kept = (kept + piece)[-HEARD:]
    return kept


def _reward(output: str) -> Any:
    """The reward that the last line says, as it stands there; None where it says none.

    >>> _reward("searching\\n{\\"reward\\": 0.5}\\n"), _reward("done\\n")
    (0.5, None)
    """
    last = output.strip().rpartition("\n")[2]
    try:
        said = json.loads(last)
    except (ValueError, RecursionError):
        return None
    return said.get("reward") if isinstance(said, dict) else None
