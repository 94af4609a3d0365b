"""Tasksets of the package `verifiers` 0.4, played as a run's episodes (`agent.run = "http"`).

    python -m asyncrl.agents.tasksets prompts N TASKSET   prints N lines of a task, for its tasks
    python -m asyncrl.agents.tasksets play RUN TASKSET    plays the episodes of a run

TASKSET is the name of one that is installed, or a TOML file as `vf-eval` reads it, of which the
tables `env` and `sampling` count. This runs in the environment of `verifiers`, whose pins are not
those of asyncrl: it needs that package and the standard library, and no more of asyncrl.

`verifiers` takes seconds to import. So there is a process for each agents actor, which has it,
asks for episodes and forks for each; one that crashes, leaks or hangs affects no other. An
episode's reward is `trace.reward` of the one seat that the run's model plays. Invariant: any
other end is a failure with a sentence, and never a reward of zero.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import math
import os
import random
import signal
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

try:
    import verifiers.v1 as vf
    from openai import APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient, omit
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
except ImportError as missing:
    if __name__ != "__main__":
        raise
    print(
        f"asyncrl.agents.tasksets: error: {missing}; run this in an environment of verifiers 0.4, "
        "as `make verifiers` builds it.",
        file=sys.stderr,
    )
    sys.exit(2)

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
LOST_S = 60.0
"""Seconds without an answer (a run or an actor may be starting) after which the run is over."""
AGAIN_S = 0.5
POLL_S = 120.0
"""Seconds of a request, of which one for an episode waits twenty."""
SPARE_S = 60
"""Seconds that an episode's process may live on after all the time that the run gives it."""


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
            self.seat = asyncio.run(_seat(self._env))
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

    async def reward(self, task: Any, base_url: str) -> float:
        """Play a task to its end, with the model at `base_url`. Raises TasksetError if it
        ends without a reward."""
        client = vf.EvalClientConfig(base_url=base_url, api_key_var=KEY)
        context = vf.ModelContext(model=MODEL, client=client, sampling=self._sampling)
        async with self._env.serving():
            episode = await self._env.run_episode(task, context)
        traces = [trace for trace in episode.traces if trace.agent.name == self.seat]
        if not episode.ok:
            errors = [
                *(error for trace in episode.traces for error in trace.errors),
                *episode.errors,
            ]
            last = f"{errors[-1].type}: {errors[-1].message}" if errors else "it is not ok"
            raise TasksetError(f"the episode failed: {last}")
        if len(traces) != 1:
            raise TasksetError(
                f"the seat {self.seat!r} was played {len(traces)} times in an episode"
            )
        if not traces[0].num_turns:
            raise TasksetError("the model said nothing")
        if not any(reward is not None for reward in traces[0].rewards.values()):
            raise TasksetError("the taskset gave no reward")
        reward = float(traces[0].reward)
        if not math.isfinite(reward):
            raise TasksetError(f"the taskset's reward is {reward}; it must be a finite number")
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
    """The configuration with its defaults: the harness above, on this machine."""
    seats: dict[str, Any] = {}
    for name, seat in agent_config_fields(config).items():
        update: dict[str, Any] = {}
        if seat.harness is None or seat.harness.id == "null":
            update["harness"] = vf.HarnessConfig(id=HARNESS)
        if "runtime" not in seat.model_fields_set:
            update["runtime"] = vf.SubprocessConfig()
        seats[name] = seat.model_copy(update=update)
    return config.model_copy(update=seats)


async def _seat(env: Any) -> str:
    """The one seat that the run's model plays: each other one has a client of its own, so that none
    of its calls reaches the run, and none is trained. Raises TasksetError."""
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
    if len(ours) != 1:
        raise TasksetError(
            f"the run's model plays one seat, and {len(ours)} of {len(seats)} "
            f"({', '.join(seats)}) have no client of their own; give one to all but one, in "
            "[env.SEAT.client] and env.SEAT.model of a TOML file"
        )
    return str(ours[0])


class _Api(NamedTuple):
    """The API of one agents actor."""

    url: str
    key: Path

    def ask(self, method: str, path: str, key: str, body: object = None) -> tuple[int, bytes]:
        """The status and body of an answer. Raises OSError and HTTPException without one."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=POLL_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def episodes(self) -> Iterator[dict[str, Any] | None]:
        """Each next episode, and None while there is none, until the run has not answered for
        `LOST_S`."""
        last = time.monotonic()
        while time.monotonic() - last < LOST_S:
            try:
                status, body = self.ask("POST", "/v1/episodes", self.key.read_text(), {})
            except (OSError, HTTPException):
                status, body = 0, b""
            if status in (200, 204):
                last = time.monotonic()
            else:  # not there yet; or the key is that of a run before this one
                time.sleep(AGAIN_S)
            yield dict(json.loads(body)) if status == 200 else None

    def give(self, episode: Mapping[str, Any], reward: float) -> None:
        """Give an episode its reward. Raises TasksetError if it is refused; an episode that the
        run has ended meanwhile needs none."""
        path = f"/v1/sessions/{episode['session']}/reward"
        status, body = self.ask("POST", path, episode["reward_key"], {"reward": reward})
        if status not in (200, 404):
            raise TasksetError(
                f"the reward {reward} was refused: {body.decode(errors='replace')[:200]}"
            )

    def give_up(self, episode: Mapping[str, Any], why: str) -> None:
        """Report that an attempt at an episode has failed."""
        print(
            f"asyncrl.agents.tasksets: {episode['session']} failed: {why}",
            file=sys.stderr,
            flush=True,
        )
        path = f"/v1/sessions/{episode['session']}"
        with suppress(OSError, HTTPException):  # the run has ended it, or will, by its clock
            self.ask("DELETE", path, episode["reward_key"], {"reason": why})


class _RunSettings(NamedTuple):
    """A run's settings that count here."""

    port: int
    actors: int
    episode_s: int


def _settings(run: Path) -> _RunSettings:
    """The settings of a run, once it has begun. Raises TasksetError if it does not begin, or if
    its episodes are not played over HTTP."""
    last = time.monotonic() + LOST_S
    while not (file := run / "run.toml").exists():
        if time.monotonic() > last:
            raise TasksetError(f"there is no run in {run}; start it, with agent.run=http")
        time.sleep(AGAIN_S)  # another program starts it: there is no notice
    agent = tomllib.loads(file.read_text()).get("agent", {})
    if agent.get("run") != "http" or not agent.get("port"):
        raise TasksetError(
            f"the run in {run} lets no program play; start it with agent.run=http and an agent.port"
        )
    most = agent["episode_s"] + agent["max_calls"] * agent["call_s"]
    return _RunSettings(agent["port"], agent["actors"], math.ceil(most) + SPARE_S)


def play(run: Path, player: TasksetPlayer) -> None:
    """Play a run's episodes until it has ended."""
    settings = _settings(run)
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, the pages that processes share
    with _killed_at_the_end() as actors:
        for index in range(settings.actors):
            api = _Api(f"http://127.0.0.1:{settings.port + index}", run / "gateway.key")
            actors.add(_forked(partial(_serve, api, player, settings.episode_s)))
        while actors:
            pid, status = os.wait()
            actors.discard(pid)
            if status:
                raise TasksetError(
                    f"the process that asks for episodes ended with {_status(status)}"
                )


def _serve(api: _Api, player: TasksetPlayer, most_s: int) -> None:
    """Play the episodes of one agents actor, each in a process of its own."""
    playing: dict[int, dict[str, Any]] = {}
    with _killed_at_the_end() as processes:
        for episode in api.episodes():
            for pid in [*playing]:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    processes.discard(pid)
                    over = playing.pop(pid)
                    if status:
                        api.give_up(over, f"its process ended with {_status(status)}")
            if episode is None:
                continue
            try:
                task = player.of(episode["entry"])
            except TasksetError as error:
                api.give_up(episode, str(error))
                continue
            pid = _forked(partial(_play, api, player, episode, task, most_s))
            processes.add(pid)
            playing[pid] = episode


def _status(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _play(
    api: _Api, player: TasksetPlayer, episode: Mapping[str, Any], task: Any, most_s: int
) -> None:
    """Play an episode, in this process, which is its own."""
    signal.alarm(most_s)
    os.environ[KEY] = episode["api_key"]
    random.seed(episode["seed"])
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(episode["seed"] % 2**32)
    try:
        api.give(episode, asyncio.run(player.reward(task, episode["base_url"])))
    except Exception as error:  # noqa: BLE001 a taskset is code of others
        reason = (
            str(error) if isinstance(error, TasksetError) else f"{type(error).__name__}: {error}"
        )
        api.give_up(episode, " ".join(reason.split())[:400])


def _forked(work: Callable[[], None]) -> int:
    """Fork a process that does the work and ends; returns its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
        code = 0
    except SystemExit:
        code = 0  # it was asked to end
    except BaseException as error:  # noqa: BLE001 nothing of this process is left after it
        print(f"asyncrl.agents.tasksets: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def _killed_at_the_end() -> Iterator[set[int]]:
    """A set of processes, which get SIGTERM at the end of the block, also if this one gets it."""
    processes: set[int] = set()
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield processes
    finally:
        signal.signal(signal.SIGTERM, before)
        for pid in processes:
            os.kill(pid, signal.SIGTERM)
        for pid in processes:
            os.waitpid(pid, 0)


def main() -> None:
    """Do what the command line says. What is wrong with it is one sentence, and exit code 2."""
    parser = argparse.ArgumentParser(
        prog="asyncrl.agents.tasksets", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    prompts = commands.add_parser("prompts", help="write lines of a task")
    prompts.add_argument("count", type=int, help="tasks of the taskset")
    plays = commands.add_parser("play", help="play a run's episodes")
    plays.add_argument("run", type=Path, help="the run's folder")
    for command in (prompts, plays):
        command.add_argument("taskset", help="a name, or a TOML file with [env] and [sampling]")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    try:
        player = TasksetPlayer(asked.taskset)
        if asked.command == "play":
            play(asked.run, player)
        else:
            for index in range(asked.count):
                print(json.dumps(player.line(index)))
    except TasksetError as error:
        sys.exit(_refusal(str(error)))
    except KeyboardInterrupt:
        sys.exit(130)


def _refusal(text: str) -> int:
    print(f"asyncrl.agents.tasksets: error: {text}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
