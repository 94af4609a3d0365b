"""A taskset of the package `verifiers` 0.4, and how one of its tasks is played to its rewards.

The seats that have no client of their own are trained: one is the run's model, and several are the
policies of a game, by their names. This runs in the environment of `verifiers`, and needs no more
of asyncrl.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from openai import APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient, omit
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["InProcessHarness"]

HARNESS = "asyncrl_tasksets"
"""The name by which `verifiers` finds the harness below, which must be that of a module."""
sys.modules[HARNESS] = sys.modules[__name__]

MODEL = "policy"
RETRIES = 8
"""Retries of a call if the gateway is busy."""
KEY = "ASYNCRL_EPISODE_KEY"
"""The variable in which `verifiers` finds the episode's key for calls."""
ENDS = ("episode_full", "context_length_exceeded")
"""Codes of the gateway for a call of an episode that is as long as it may be."""


class TasksetError(Exception):
    """A request of the user cannot be met; the sentence says what is wrong, and what to do."""


class InProcessHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc] # there may be none
    """A chat with the taskset's tools, in this process. The harnesses of `verifiers` make an
    environment with `uv`, and start a program in it for each turn."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Let the model speak until it calls no tool. It also ends when the gateway takes no more
        calls: the taskset then judges what there is."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout}
            for name, url in mcp_urls.items()
        }
        async with AsyncExitStack() as stack:
            http = DefaultAsyncHttpxClient(trust_env=False, timeout=None)
            client = await stack.enter_async_context(
                AsyncOpenAI(
                    base_url=endpoint,
                    api_key=secret,
                    http_client=http,
                    timeout=None,
                    max_retries=RETRIES,
                )
            )
            tools, names, connected = await connect_mcp({"mcpServers": servers}, stack)
            try:
                while True:
                    answer = await client.chat.completions.create(
                        model=ctx.model, messages=messages, tools=tools or omit
                    )
                    reply: Any = answer.choices[0].message
                    messages.append(reply.model_dump(exclude_none=True))
                    for call in reply.tool_calls or ():
                        result = await _called(call.function, names, connected)
                        messages.append(
                            {"role": "tool", "tool_call_id": call.id, "content": result}
                        )
                    if not reply.tool_calls:
                        break
            except APIStatusError as error:
                if not trace.num_turns or not any(code in str(error) for code in ENDS):
                    raise
        return vf.ProgramResult(0, "", "")


async def _called(function: Any, names: Mapping[str, Any], connected: Mapping[str, Any]) -> Any:
    """A tool's result, or a text that says what was wrong with the call."""
    try:
        arguments = json.loads(function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if function.name not in names or not isinstance(arguments, dict):
        reason = "the arguments are not an object" if arguments is None else "no such tool"
        return f"error: {reason}"
    return await call_mcp(connected, names, function.name, arguments)


class TasksetPlayer:
    """A taskset and its player. Raises TasksetError if there is none, or if it cannot be
    trained."""

    def __init__(self, taskset: str) -> None:
        tables = _tables(taskset)
        try:
            self._sampling = vf.SamplingConfig.model_validate(tables.get("sampling", {}))
            config = _seated(vf.resolve_env_config(tables.get("env", {})))
            self._env = vf.load_environment(config)
            self.seats = asyncio.run(_seats(self._env))
            self._left = iter(self._env.taskset)
        except TasksetError:
            raise
        except Exception as error:
            raise TasksetError(_why_not(taskset, error)) from error
        self._name = config.taskset.id
        self._tasks: list[Any] = []

    def task(self, index: int) -> Any:
        """The task of a number, from 0. Raises TasksetError if there is none."""
        while len(self._tasks) <= index:
            try:
                with redirect_stdout(sys.stderr):  # some say that they download
                    self._tasks.append(next(self._left))
            except StopIteration:
                raise TasksetError(
                    f"the taskset {self._name!r} has {len(self._tasks)} tasks, and no number "
                    f"{index}; ask for fewer prompts"
                ) from None
            except Exception as error:
                raise TasksetError(_why_not(self._name, error)) from error
        return self._tasks[index]

    def line(self, index: int) -> dict[str, Any]:
        """The line of a task's file. Its prompt is a name: the taskset makes the model's real
        prompt. The hash detects a taskset that has changed since."""
        task = self.task(index)
        return {"prompt": f"{self._name} {index}", "answer": "", "task": index, "hash": task.hash}

    def of(self, entry: Mapping[str, Any]) -> Any:
        """The task of a line. Raises TasksetError if the line is not of a task of this taskset."""
        index = entry.get("task")
        if type(index) is not int or index < 0:
            raise TasksetError(
                "the prompt was not written by asyncrl.agents.tasksets: it names no task"
            )
        task = self.task(index)
        if task.hash != entry.get("hash"):
            raise TasksetError(
                f"task {index} of {self._name!r} is not the one for which the prompt was written; "
                "write the prompts again"
            )
        return task

    def seat(self) -> str:
        """The seat that is trained. Raises TasksetError if there are several."""
        if len(self.seats) == 1:
            return self.seats[0]
        raise TasksetError(
            f"the run's model plays one seat, and {len(self.seats)} ({', '.join(self.seats)}) have "
            "no client of their own: train them as a game of policies with these names, or give "
            "one to all but one, in [env.SEAT.client] and env.SEAT.model of a TOML file"
        )

    async def rewards(self, task: Any, base_url: str) -> dict[str, float]:
        """Play a task to its end, with the models at `base_url`: the reward of each trained seat.
        Raises TasksetError if it ends without."""
        client = vf.EvalClientConfig(base_url=base_url, api_key_var=KEY)
        context = vf.ModelContext(model=MODEL, client=client, sampling=self._sampling)
        async with self._env.serving():
            episode = await self._env.run_episode(task, context)
        if not episode.ok:
            errors = [
                *(error for trace in episode.traces for error in trace.errors),
                *episode.errors,
            ]
            last = f"{errors[-1].type}: {errors[-1].message}" if errors else "it is not ok"
            raise TasksetError(f"the episode failed: {last}")
        return {seat: _reward(seat, episode.traces) for seat in self.seats}


def _reward(seat: str, traces: Sequence[Any]) -> float:
    """The reward of a seat in an episode. Raises TasksetError if there is none."""
    own = [trace for trace in traces if trace.agent.name == seat]
    if len(own) != 1:
        raise TasksetError(f"the seat {seat!r} was played {len(own)} times in an episode")
    if not own[0].num_turns:
        raise TasksetError(f"the model of the seat {seat!r} said nothing")
    if not any(reward is not None for reward in own[0].rewards.values()):
        raise TasksetError(f"the taskset gave no reward to the seat {seat!r}")
    reward = float(own[0].reward)
    if not math.isfinite(reward):
        raise TasksetError(
            f"the taskset's reward of the seat {seat!r} is {reward}; it must be a finite number"
        )
    return reward


def _tables(taskset: str) -> dict[str, Any]:
    """A TOML file's tables, or those that name a taskset alone. Raises TasksetError."""
    if not taskset.endswith(".toml"):
        return {"env": {"taskset": {"id": taskset}}}
    try:
        return tomllib.loads(Path(taskset).read_text())
    except (OSError, ValueError) as error:
        raise TasksetError(f"{taskset} cannot be read: {error}") from None


def _why_not(taskset: str, error: Exception) -> str:
    """One line: what is wrong with a taskset, as `verifiers` says it."""
    if isinstance(error, ModuleNotFoundError) and "not found (tried" in str(error):
        return (
            f"{str(error).partition(' (tried')[0]}; correct its name, or install its package in "
            f"this environment ({sys.prefix})"
        )
    if callable(errors := getattr(error, "errors", None)):  # pydantic's
        problems = [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in errors()
        ]
        return f"{taskset} cannot be used: {'; '.join(problems)}"
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"the taskset {taskset!r} cannot be loaded: {type(error).__name__}: {first}"


def _seated(config: Any) -> Any:
    """The configuration with its defaults: the harness above, on this machine. Of several seats
    without a client, each is played by the model of its name."""
    fields = agent_config_fields(config)
    several = sum(seat.client is None for seat in fields.values()) > 1
    seats: dict[str, Any] = {}
    for name, seat in fields.items():
        update: dict[str, Any] = {}
        if seat.harness is None or seat.harness.id == "null":
            update["harness"] = vf.HarnessConfig(id=HARNESS)
        if "runtime" not in seat.model_fields_set:
            update["runtime"] = vf.SubprocessConfig()
        if several and seat.client is None:
            update["model"] = name
        seats[name] = seat.model_copy(update=update)
    return config.model_copy(update=seats)


async def _seats(env: Any) -> list[str]:
    """The seats that are trained: each other one has a client of its own, so that none of its calls
    reaches the run. Raises TasksetError."""
    agents = vf.Agents(
        env.config,
        lambda name, seat: vf.make_agent(
            seat.model_copy(update={"model": seat.model or MODEL}), interception=None
        ),
    )
    await env.setup(agents)
    seats = agent_config_fields(env.config)
    ours = [name for name, seat in seats.items() if seat.client is None]
    for name in ours:
        if not getattr(agents, name).trainable:
            raise TasksetError(
                f"the seat {name!r} is not trained, so the run's model cannot play it; name its "
                f"model, in [env.{name}.client] and env.{name}.model of a TOML file"
            )
    if not ours:
        raise TasksetError(
            f"each of its seats ({', '.join(seats)}) has a client of its own, so none would be "
            "trained: remove the client of one"
        )
    return ours
