"""Loading of the agent that `agent.run` names. Invariant: whatever its form, it becomes one async
function of an episode's facts.

A module is imported like every module of a user: by its name, with its folder on PYTHONPATH
(`asyncrl.config.plugins`).
"""

from __future__ import annotations

import asyncio
import inspect
import re
import shutil
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from asyncrl.agents.agent_episode import AgentEpisode, BlockingEpisode, EpisodeFacts
from asyncrl.agents.agent_program import run_in_sandbox, run_program
from asyncrl.agents.closing import Closing
from asyncrl.agents.environments import play, wants_episode
from asyncrl.agents.gateway_client import GatewayClient
from asyncrl.agents.model_call import RETRIES
from asyncrl.config.errors import ConfigError
from asyncrl.config.paths import exists
from asyncrl.config.plugins import load_named

Agent = Callable[[EpisodeFacts, Closing], Awaitable[Any]]
"""Plays an episode, and returns what its user's code returned. It raises what that raises. What is
to be closed afterwards is added to the `Closing`."""

FORM = "async def solve(client, episode)"
PROGRAM = '["python", "agent.py"]'
_SCRIPT = re.compile(r"\S+\.(py|js|mjs|ts|sh|rb)")
"""A word that names a file if it is the first one behind a program."""


def load_agent(run: str | Sequence[str], paths: Sequence[str] | None = None) -> Agent:
    """Load the agent that `module:name` names, a function or an environment's class, or make one of
    a command line. With `paths` a command runs in the sandbox, where it sees them. Raises
    ConfigError, which says what is wrong, and ModuleNotFoundError if the client that a function
    needs is not installed."""
    if not isinstance(run, str):
        return _of_program(list(run), paths)
    if ":" not in run:
        raise ConfigError(
            f"{run!r} names no agent: give the module:name or ./file.py:name of one of your own, "
            f"or a program as a list of words, as in {PROGRAM}."
        )
    target = load_named(run, "agent")
    if isinstance(target, type):
        return _of_class(run, target)
    if not callable(target):
        raise ConfigError(
            f"the agent {run!r} is a {type(target).__name__}; name a function, as in {FORM}, or a "
            "class with reset and step."
        )
    if not _takes(target, 2):
        raise ConfigError(
            f"the agent {run!r} cannot be called with a client and an episode; define it as {FORM}."
        )
    import openai  # noqa: F401 before a process with the agent is forked

    waits = inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(target.__call__)
    play_function = play_async if waits else _play_sync

    async def agent(facts: EpisodeFacts, closing: Closing) -> Any:
        closing.add(target)
        return await play_function(target, facts)

    return agent


def _of_program(argv: list[str], paths: Sequence[str] | None) -> Agent:
    if not argv or not all(isinstance(word, str) and word for word in argv):
        raise ConfigError(f"agent.run is an empty command; give one, as in {PROGRAM}.")
    if shutil.which(argv[0]) is None:
        raise ConfigError(
            f"agent.run starts {argv[0]!r}, and there is no such program on PATH; give its path."
        )
    script = next((word for word in argv[1:] if not word.startswith("-")), "")
    if _SCRIPT.fullmatch(script) and not exists(Path(script)):
        raise ConfigError(
            f"agent.run starts {argv[0]!r} with {script!r}, and there is no such file in "
            f"{Path.cwd()}; give its path."
        )

    async def agent(facts: EpisodeFacts, closing: Closing) -> Any:
        if paths is None:
            return await run_program(argv, facts)
        return await run_in_sandbox(argv, paths, facts)

    return agent


def _of_class(run: str, kind: type) -> Agent:
    """An agent of an environment's class. Raises ConfigError for another class."""
    for name, arguments, form in (
        ("reset", 2, "reset(self, entry, seed)"),
        ("step", 1, "step(self, reply)"),
    ):
        method = getattr(kind, name, None)
        more = {"episode": None} if callable(method) and wants_episode(method) else {}
        if not callable(method) or not _takes(method, 1 + arguments, **more):
            raise ConfigError(f"the agent {run!r} is a class without {form}; define it.")
    if not _takes(kind, 0):
        raise ConfigError(
            f"the class {run!r} needs arguments; an environment is made without any, and gets its "
            "entry in reset."
        )

    async def agent(facts: EpisodeFacts, closing: Closing) -> float:
        environment = kind()
        closing.add(environment)
        return await play(environment, facts)

    return agent


def _takes(function: Callable[..., Any], arguments: int, **more: None) -> bool:
    """True if the signature of a function takes this many arguments, and `more` by name."""
    try:
        inspect.signature(function).bind(*[None] * arguments, **more)
    except TypeError:
        return False
    except ValueError:  # a C function without a signature
        return True
    return True


@cache
def _tls() -> ssl.SSLContext:
    """One for all clients: each would read all certificates, and the gateway speaks no TLS."""
    return ssl.create_default_context()


async def play_async(solve: Callable[..., Awaitable[Any]], facts: EpisodeFacts) -> Any:
    import openai

    async with GatewayClient(facts.base_url) as gateway:
        # the gateway bounds a call, and the attempt's clock all else; a proxy is not for loopback
        http = openai.DefaultAsyncHttpxClient(trust_env=False, verify=_tls(), timeout=None)
        async with _client(openai.AsyncOpenAI, facts, http) as client:
            return await solve(client, AgentEpisode(facts, gateway))


async def _play_sync(solve: Callable[..., Any], facts: EpisodeFacts) -> Any:
    import openai

    async with GatewayClient(facts.base_url) as gateway:
        episode = AgentEpisode(facts, gateway)
        blocking = BlockingEpisode(facts, episode, asyncio.get_running_loop())
        http = openai.DefaultHttpxClient(trust_env=False, verify=_tls(), timeout=None)
        with _client(openai.OpenAI, facts, http) as client:
            return await asyncio.to_thread(solve, client, blocking)


def _client(kind: Callable[..., Any], facts: EpisodeFacts, http: Any) -> Any:
    return kind(
        base_url=facts.base_url,
        api_key=facts.api_key,
        http_client=http,
        timeout=None,
        max_retries=RETRIES,
    )
