"""The programs of docs/examples/harnesses, each as it is, against a gateway with a scripted model,
which calls a tool of the harness, and says something when it has the result.

They need packages and command lines that asyncrl does not, so they run where `HARNESS_PYTHON` names
an interpreter that has them; what it lacks is skipped.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from box_support import RUN, settings
from fake_gateway import fake_gateway
from gateway_world import KEY, Script, say, scripted, served, write_chat

from asyncrl.agents.agent_sandbox import client_variables
from asyncrl.agents.closing import Closing
from asyncrl.agents.endings import AgentEnd, AgentEnded, AgentFailed, played
from asyncrl.agents.load_agent import load_agent
from asyncrl.engines.protocol import Request
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin

EXAMPLES = Path(__file__).parents[2] / "docs/examples/harnesses"
PYTHON = os.environ.get("HARNESS_PYTHON", "")
CONTEXT, PATIENCE_S = 400_000, 120.0
"""Tokens of a context, each of which is a byte here; and seconds of a program."""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CALLS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "openai_agents": ("agents", "add", {"a": 2, "b": 3}),
    "langgraph_agent": ("langgraph", "add", {"a": 2, "b": 3}),
    "mini_swe": ("minisweagent", "bash", {"command": "echo 5"}),
    "claude_code": ("claude", "Bash", {"command": "echo 5", "description": "Say it"}),
    "codex": ("codex", "exec_command", {"cmd": "echo 5"}),
}
"""By program: what it needs, and the tool that the model calls."""


TASK = """schema_version = "1.4"
[task]
name = "me/hello"
[verifier]
timeout_sec = 60.0
[verifier.env]
WANTED = "hi"
[environment]
network_mode = "public"
"""
TEST = """#!/bin/sh
[ "$(cat hello.txt)" = "$WANTED" ] && right=1 || right=0
"""


def harbor_task(folder: Path, judge: str = 'echo "$right" > logs/verifier/reward.txt') -> Path:
    """A folder as `harbor init --task --verifier-mode shared` writes it (0.26), and its judge."""
    task = folder / "hello"
    (task / "tests").mkdir(parents=True)
    (task / "instruction.md").write_text("Write hi to hello.txt.")
    (task / "task.toml").write_text(TASK)
    (task / "tests/test.sh").write_text(TEST + judge)
    return task


def harbor(folder: Path) -> Any:
    """The example, whose absolute paths are below the sandbox's folder."""
    mine = folder / "harbor_tasks.py"
    text = (EXAMPLES / "harbor_tasks.py").read_text()
    mine.write_text(text.replace('"/tests", "/logs/', '"tests", "logs/'))
    spec = importlib.util.spec_from_file_location("harbor_tasks", mine)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_harbors_task_folders_are_read(tmp_path: Path) -> None:
    """And one that cannot be played is refused by name."""
    found, task = harbor(tmp_path), harbor_task(tmp_path)
    [row] = found.rows(tmp_path)
    assert row["prompt"] == "Write hi to hello.txt." and row["folder"] == str(task)
    assert (row["image"], row["agent"]) == ("localhost/harbor-hello", {})
    (task / "task.toml").write_text('[agent]\ntimeout_sec=6.0\n[environment]\ndocker_image="a:1"')
    [row] = found.rows(tmp_path)
    assert (row["image"], row["agent"]) == ("a:1", {"timeout_sec": 6.0})
    (task / "task.toml").write_text('[verifier]\nenvironment_mode = "separate"')
    with pytest.raises(ValueError, match=r"set verifier\.environment_mode"):
        list(found.rows(tmp_path))
    (task / "instruction.md").unlink()
    with pytest.raises(ValueError, match=r"has a task.toml and no instruction\.md"):
        list(found.rows(tmp_path))


@pytest.mark.parametrize(
    ("judge", "replies", "end"),
    [
        ('echo "$right" > logs/verifier/reward.txt', ["printf hi > hello.txt"], {"reward": 1.0}),
        ('echo "$right" > logs/verifier/reward.txt', ["echo 1 > logs/verifier/reward.txt"], None),
        ('echo \'{"a": 0.5, "b": 1}\' > logs/verifier/reward.json', [], {"a": 0.5, "b": 1.0}),
        ("echo broken >&2", ["true"], "the tests left no reward"),
    ],
    ids=["right", "wrong", "by name", "none"],
)
def test_harbors_tests_judge_what_the_agent_left(
    judge: str, replies: list[str], end: dict[str, float] | str | None, tmp_path: Path
) -> None:
    """In the sandbox in which it worked, by the reward that test.sh leaves; without one the attempt
    has failed, and never with a reward of 0."""
    (tmp_path / "scratch").mkdir()
    harbor_task(tmp_path / "tasks", judge)
    [row] = harbor(tmp_path).rows(tmp_path / "tasks")
    boxes = BoxOrigin(settings(kind="directory", hosts=("*",)), RUN, str(tmp_path / "scratch"))
    with fake_gateway() as gateway:
        gateway.replies = [*map(shell, replies), "done"]
        agent = load_agent(f"{tmp_path}/harbor_tasks.py:solve")
        done = asyncio.run(played(agent, gateway.facts(entry=row, boxes=boxes), Closing()))
    if isinstance(end, str):
        assert isinstance(done, AgentFailed) and end in done.text
    else:
        assert isinstance(done, AgentEnded), done
        assert done.reward == (end or {"reward": 0.0})
    assert not list((tmp_path / "scratch").iterdir())


def shell(command: str) -> dict[str, Any]:
    """A reply that runs a command."""
    function = {"name": "shell", "arguments": json.dumps({"command": command})}
    call = {"id": "c", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


DOUBLE = """
from types import SimpleNamespace as Result

class GenericEnvClient:
    open = 0

    def __init__(self, base_url): self.base_url = base_url

    async def connect(self):
        assert not GenericEnvClient.open
        GenericEnvClient.open += 1
        return self

    async def reset(self, **more):
        self.secret, self.tries = more["seed"] % 10, 0
        return Result(observation={"said": "Guess."}, reward=None, done=False)

    async def step(self, action):
        self.tries += 1
        right = action["message"] == str(self.secret)
        observation = {"said": "right" if right else "wrong"}
        return Result(observation=observation, reward=float(right), done=right or self.tries == 3)

    async def close(self): GenericEnvClient.open -= 1
"""
"""OpenEnv's client, as far as the example calls it."""
SERVER = """
import socket, sys, uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Guess(Action):
    message: str

class Said(Observation):
    said: str = ""

class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State(episode_id="1", step_count=0)

    def reset(self, seed=None, episode_id=None, **more):
        self.secret, self.tries = seed % 10, 0
        return Said(said="Guess.", done=False, reward=None)

    def step(self, action, **more):
        self.tries += 1
        right = action.message == str(self.secret)
        done = right or self.tries == 3
        return Said(said="right" if right else "wrong", done=done, reward=float(right))

app = create_app(Game, Guess, Said, env_name="guess", max_concurrent_envs=1)
with socket.socket() as at:
    at.bind(("127.0.0.1", 0))
    at.listen()
    print(f"http://127.0.0.1:{at.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([at])
"""
"""A server of one episode at a time, with the real package."""


@pytest.fixture
def openenv(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of an environment, and its client as `openenv.core`: the package, or its double."""
    if request.param == "a double":
        (tmp_path / "openenv").mkdir()
        (tmp_path / "openenv/core.py").write_text(DOUBLE)
        monkeypatch.syspath_prepend(str(tmp_path))
        yield "http://nowhere"
        return
    if not is_here("openenv"):
        pytest.skip("openenv is not here")
    where = [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    found = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(sys, "path", [*sys.path, found])
    with subprocess.Popen([PYTHON, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


@pytest.mark.parametrize("openenv", ["a double", "the package"], indirect=True)
def test_episodes_of_openenv_are_played_and_end_on_their_server(
    openenv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after another, by a server that has one at a time: each attempt closes its own."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "openenv"]:
        monkeypatch.delitem(sys.modules, name)
    entry = {"url": openenv}
    with fake_gateway() as gateway:
        agent = load_agent(f"{EXAMPLES}/openenv_game.py:Game")
        for replies, reward in ((["1", "5"], 1.0), (["2", "3", "4"], 0.0), (["5"], 1.0)):
            gateway.replies = [*replies]

            async def attempt() -> AgentEnd:
                closing = Closing()
                done = await played(agent, gateway.facts(entry=entry, seed=25), closing)
                assert await closing.close() == ""
                return done

            assert asyncio.run(attempt()) == AgentEnded(reward)


TEXTARENA = Path(__file__).parents[2] / ".venv-verifiers/lib/python3.11/site-packages"
PLAYS = """
import asyncio, importlib.util, sys
from types import SimpleNamespace
sys.path.append(sys.argv[2])
from openai import AsyncOpenAI
spec = importlib.util.spec_from_file_location("textarena_opponent", sys.argv[1])
game = importlib.util.module_from_spec(spec)
spec.loader.exec_module(game)
print(asyncio.run(game.solve(AsyncOpenAI(), SimpleNamespace(seed=5))))
"""
"""Plays one game by the example's function."""


@pytest.mark.processes
@pytest.mark.explore
async def test_a_game_of_textarena_is_played_to_its_end(tmp_path: Path) -> None:
    """With the real package, which the environment of `verifiers` has."""
    if not (TEXTARENA / "textarena").exists():
        pytest.skip("there is no environment of verifiers with textarena")
    moves = iter((0, 3, 1, 4, 2))
    engine = scripted(lambda _: say(f"[{next(moves)}]"), context_tokens=CONTEXT)
    await engine.load(0, None)
    with trio.fail_after(PATIENCE_S):
        async with served(engine, write_chat(tmp_path), context_tokens=CONTEXT) as (world, url):
            told = {"OPENAI_BASE_URL": f"{url}/sessions/r1-1/v1", "OPENAI_API_KEY": KEY}
            command = [sys.executable, "-c", PLAYS, str(EXAMPLES / "textarena_opponent.py")]
            done = await trio.run_process(
                [*command, str(TEXTARENA)], env=os.environ | told, capture_stdout=True
            )
    assert float(done.stdout.split()[-1]) == 1.0 and len(world.asks) == 5


def is_here(name: str) -> bool:
    """True if there is such a command line, or a package of the interpreter."""
    if not PYTHON:
        return False
    if name in ("claude", "codex"):
        return shutil.which(name) is not None
    return not subprocess.run([PYTHON, "-c", f"import {name}"], capture_output=True).returncode


@pytest.mark.processes
@pytest.mark.parametrize("name", CALLS)
async def test_a_harness_calls_a_tool_and_ends(name: str, tmp_path: Path) -> None:
    needs, tool, arguments = CALLS[name]
    if not is_here(needs):
        pytest.skip(f"{needs} is not here")
    seen: list[str] = []

    def call(given: dict[str, Any]) -> Script:
        called = json.dumps({"name": tool, "arguments": given})
        return say(f"<tool_call>\n{called}\n</tool_call>")

    def answer(request: Request) -> Script:
        context = "".join(chr(token) if token < 256 else "\n" for token in request.ids)
        seen.append(context)
        if "[tool]" not in context and len(seen) == 1:
            return call(arguments)
        return call({"command": SUBMIT}) if name == "mini_swe" else say("The answer is 5.")

    engine = scripted(answer, context_tokens=CONTEXT, chunk_tokens=64)
    await engine.load(0, None)
    with trio.fail_after(PATIENCE_S):
        async with served(engine, write_chat(tmp_path), context_tokens=CONTEXT) as (
            coordinator,
            url,
        ):
            told = {
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                **client_variables(f"{url}/sessions/r1-1/v1", KEY),
                "ASYNCRL_PROMPT": "2 + 3 = ?",
                "ASYNCRL_PROMPT_INDEX": "0",
                "ASYNCRL_SEED": f"{os.getpid()}",
            }
            done = await trio.run_process(
                [PYTHON, str(EXAMPLES / f"{name}.py")],
                env=told, cwd=tmp_path, check=False, capture_stdout=True, capture_stderr=True,
            )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert ("Submitted" if name == "mini_swe" else "5") in done.stdout.decode()
    assert len(seen) >= 2 and "[tool]" in seen[-1 if name != "langgraph_agent" else -2]
    assert "2 + 3 = ?" in seen[0]
    roles = {ask.role for ask in coordinator.asks}
    assert roles == ({"worker", "summarizer"} if name == "langgraph_agent" else {""})
