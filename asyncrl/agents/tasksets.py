"""Tasksets of the package `verifiers` 0.4, played as episodes of a run or as games.

    python -m asyncrl.agents.tasksets prompts N TASKSET   prints N lines of a task, for its tasks
    python -m asyncrl.agents.tasksets play RUN TASKSET    plays the episodes of a run, over HTTP
    python -m asyncrl.agents.tasksets once TASKSET        plays one, as a program (agent_program.py)

TASKSET is the name of one that is installed, or a TOML file as `vf-eval` reads it, of which the
tables `env` and `sampling` count. This runs in the environment of `verifiers`, whose pins are not
those of asyncrl: it needs that package and the standard library, and no more of asyncrl.

`verifiers` takes seconds to import. So `play` has a process for each agents actor, which has it,
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
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

try:
    from asyncrl.agents.taskset_player import KEY, TasksetError, TasksetPlayer
except ImportError as missing:
    if __name__ != "__main__":
        raise
    print(
        f"asyncrl.agents.tasksets: error: {missing}; run this in an environment of verifiers 0.4, "
        "as `make verifiers` builds it.",
        file=sys.stderr,
    )
    sys.exit(2)

LOST_S = 60.0
"""Seconds without an answer (a run or an actor may be starting) after which the run is over."""
AGAIN_S = 0.5
POLL_S = 120.0
"""Seconds of a request, of which one for an episode waits twenty."""
SPARE_S = 60
"""Seconds that an episode's process may live on after all the time that the run gives it."""


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
    player.seat()
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
    _begin(episode["api_key"], episode["seed"])
    try:
        rewards = asyncio.run(player.rewards(task, episode["base_url"]))
        api.give(episode, rewards[player.seat()])
    except Exception as error:  # noqa: BLE001 a taskset is code of others
        reason = (
            str(error) if isinstance(error, TasksetError) else f"{type(error).__name__}: {error}"
        )
        api.give_up(episode, " ".join(reason.split())[:400])


def once(player: TasksetPlayer) -> dict[str, Any]:
    """Play the episode that a program's environment names: the rewards by seat, or of the one.
    Raises TasksetError."""
    missing = {"ASYNCRL_ENTRY", "ASYNCRL_SEED", "OPENAI_BASE_URL", "OPENAI_API_KEY"} - {*os.environ}
    if missing:
        raise TasksetError(f"{min(missing)} is not set; it is started by a run, as agent.run")
    entry, seed = json.loads(os.environ["ASYNCRL_ENTRY"]), int(os.environ["ASYNCRL_SEED"])
    task = player.of(entry)
    _begin(os.environ["OPENAI_API_KEY"], seed)
    with redirect_stdout(sys.stderr):
        rewards = asyncio.run(player.rewards(task, os.environ["OPENAI_BASE_URL"]))
    return {"reward": rewards if len(rewards) > 1 else rewards[player.seat()]}


def _begin(key: str, seed: int) -> None:
    """Set the episode's key for calls where `verifiers` reads it, and seed what tasksets use."""
    os.environ[KEY] = key
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


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
    single = commands.add_parser("once", help="play the episode that the environment names")
    for command in (prompts, plays, single):
        command.add_argument("taskset", help="a name, or a TOML file with [env] and [sampling]")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    try:
        player = TasksetPlayer(asked.taskset)
        match asked.command:
            case "play":
                play(asked.run, player)
            case "once":
                print(json.dumps(once(player)))
            case _:
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
