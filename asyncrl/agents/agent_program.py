"""An agent that is a program of its own, in any language: `agent.run = ["python", "my_agent.py"]`.

Its environment has what an `AgentEpisode` has:

    OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL             what the official clients read
    ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, ANTHROPIC_MODEL    by themselves
    ASYNCRL_PROMPT, ASYNCRL_ENTRY       the prompt; the task's entry, as JSON
    ASYNCRL_PROMPT_INDEX, ASYNCRL_SEED, ASYNCRL_ATTEMPT
    ASYNCRL_SESSION_URL, ASYNCRL_REWARD_KEY     for notes, and for rewards of turns

Its reward is the last line of its output, `{"reward": 1.0}` or `{"reward": {"right": 1.0}}`;
without one in that line, the task's verifier judges the last reply. The reward is printed and not
posted, because every program can print, and because exit code and reward come together: a program
that fails after its reward has none. An exit code other than 0 is a failure, which shows the end of
standard error. If its attempt is ended from outside, its process group gets SIGTERM, and SIGKILL
some seconds later (`asyncrl.actors.agent_process`).

In the sandbox (`agent.sandbox`) a model may have written the program. It has no key for rewards,
and the verifier judges: a program that prints a reward has failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.agent_sandbox import (
    base_url,
    client_variables,
    program_of_command,
    with_model,
)
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.under_asyncio import run_in_asyncio

OUTPUT_BYTES = 2**16
"""Bytes of a program's output that are kept: the last ones."""
LINES = 3
"""Lines of standard error that a failure shows."""
SECOND_KEY = "ANTHROPIC_AUTH_TOKEN"
"""A variable of the user's that programs do not get: Anthropic's clients would send this key, too,
and warn of two."""


class ProgramFailed(Exception):
    """The program ended with an error; the text says which."""


def environment_of(facts: EpisodeFacts) -> dict[str, str]:
    """The environment variables of a program, without the key for rewards."""
    return {
        **client_variables(facts.base_url, facts.api_key),
        "ASYNCRL_PROMPT": facts.prompt,
        "ASYNCRL_ENTRY": json.dumps(facts.entry),
        "ASYNCRL_PROMPT_INDEX": str(facts.prompt_index),
        "ASYNCRL_SEED": str(facts.seed),
        "ASYNCRL_ATTEMPT": str(facts.attempt),
        "ASYNCRL_SESSION_URL": facts.session_url,
    }


def past_proxies(environment: Mapping[str, str], url: str) -> dict[str, str]:
    """The variables by which a client reaches the gateway at `url` itself, and not by the proxy
    that the environment names for other addresses.

    >>> past_proxies({"no_proxy": "intranet"}, "http://127.0.0.1:80/v1")["NO_PROXY"]
    'intranet,localhost,127.0.0.1,::1'
    """
    before = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [host for part in before.split(",") if (host := part.strip())]
    hosts += ["localhost", "127.0.0.1", "::1", urlsplit(url).hostname or ""]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(filter(None, dict.fromkeys(hosts))))


async def run_program(argv: Sequence[str], facts: EpisodeFacts) -> Any:
    """Run a program to its end, and return the reward that it printed, or None. Raises
    ProgramFailed, and OSError if it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **{name: text for name, text in os.environ.items() if name != SECOND_KEY},
            **past_proxies(os.environ, facts.base_url),
            **environment_of(facts),
            "ASYNCRL_REWARD_KEY": facts.reward_key,
        },
    )
    assert process.stdout and process.stderr
    try:
        output, errors, code = await asyncio.gather(
            _passed_on(process.stdout), _passed_on(process.stderr), process.wait()
        )
    except asyncio.CancelledError:
        await process.wait()  # its group was told to end, and is killed after its grace
        raise
    if code:
        raise _failed(f"exit code {code}" if code > 0 else f"signal {-code}", errors)
    return _reward(output.decode(errors="replace"))


async def run_in_sandbox(argv: Sequence[str], paths: Sequence[str], facts: EpisodeFacts) -> None:
    """Run a program in the sandbox `bwrap` to its end; it sees `paths` besides its own files.
    Raises ProgramFailed, also if it prints a reward, and ProgramError if it cannot be
    started."""
    inside = msgspec.structs.replace(facts, base_url=base_url(facts.session))
    command = program_of_command(argv, paths)
    runnable = msgspec.structs.replace(command, environment=environment_of(inside))
    ran = await run_in_asyncio(with_model(runnable, facts), Bubblewrap())
    _print(ran.stdout + ran.stderr)
    if ran.truncated:
        raise _failed(f"it printed more than {command.output_bytes} bytes", ran.stderr)
    if ran.code:
        raise _failed(f"exit code {ran.code}", ran.stderr)
    if _reward(ran.stdout.decode(errors="replace")) is not None:
        raise ProgramFailed(
            "it printed a reward, and a program in the sandbox may give none: leave it to the "
            "task's verifier, or set agent.sandbox to none"
        )


def _failed(ended: str, errors: bytes) -> ProgramFailed:
    lines = errors.decode(errors="replace").strip().splitlines()[-LINES:]
    return ProgramFailed(" / ".join([ended, *lines]))


async def _passed_on(stream: asyncio.StreamReader) -> bytes:
    """Print what a program prints, as an agent that is a function prints it, to the end of the
    stream. Returns the last bytes."""
    kept = b""
    while piece := await stream.read(OUTPUT_BYTES):
        kept = (kept + piece)[-OUTPUT_BYTES:]
        _print(piece)
    return kept


def _print(output: bytes) -> None:
    sys.stdout.write(output.decode(errors="replace"))
    sys.stdout.flush()


def _reward(output: str) -> Any:
    """The reward in the last line, as written there; None without one.

    >>> _reward("searching\\n{\\"reward\\": 0.5}\\n"), _reward("done\\n")
    (0.5, None)
    """
    last = output.strip().rpartition("\n")[2]
    try:
        value = json.loads(last)
    except (ValueError, RecursionError):
        return None
    return value.get("reward") if isinstance(value, dict) else None
