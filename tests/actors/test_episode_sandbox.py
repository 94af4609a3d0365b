"""Programs of an episode in the sandbox, before the real gateway and a scripted coordinator: they
call the model by an ordinary client, and reach nothing else."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from memory_link import memory_links
from program_support import needs_programs
from scripted_agents import ScriptedCoordinator

from asyncrl.actors.agents_actor import agents_actor
from asyncrl.actors.agents_gateway import open_episodes
from asyncrl.actors.episode_sockets import private_folder
from asyncrl.actors.reporting import Reporter
from asyncrl.agents import agent_sandbox
from asyncrl.agents.agent_sandbox import program_of_command, refuse_without_sandbox, with_model
from asyncrl.agents.gateway.capability import capability
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import AgentConfig, Config, EngineConfig, TaskConfig
from asyncrl.messages import Drain, Drained, GiveReward, Played
from asyncrl.runtime.ipc.keys import write_key
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.run_dir import GATEWAY_KEY
from asyncrl.sandbox.programs.program import GATEWAY, PATH, Program

pytestmark = pytest.mark.processes

PATIENCE_S = 300.0
KEY = b"the-key-of-this-run"
PYTHON = shutil.which("python3", path=PATH) or sys.executable

CLIENT = """
import json, os, sys, urllib.error, urllib.request

def post(url, key, body):
    head = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as answer: return json.load(answer)

def ask(text, base=os.environ["OPENAI_BASE_URL"], key=os.environ["OPENAI_API_KEY"]):
    body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
    return post(f"{base}/chat/completions", key, body)["choices"][0]["message"]["content"]
"""
HOSTILE = """
import socket

port, other_key, other_socket = int(sys.argv[1]), sys.argv[2], sys.argv[3]
base, url = os.environ["OPENAI_BASE_URL"], os.environ["ASYNCRL_SESSION_URL"]
own_key = os.environ["OPENAI_API_KEY"]

def tried(do):
    try: do()
    except urllib.error.HTTPError as error: return error.code
    except OSError as error: return "no"
    return "yes"

def write(path):
    return tried(lambda: open(path, "a").write("x"))

match int(os.environ["ASYNCRL_PROMPT_INDEX"]):
    case 0:
        ask("other")
    case 1:
        ask("award")
        print('{"reward": 1.0}')
    case 2:
        found = [
            # more connections than it may have, which it holds
            all(held := [socket.socket(socket.AF_UNIX) for _ in range(8)])
            and sum(one.connect_ex("/gateway.sock") == 0 for one in held) == 8,
            # the host's loopback, and the socket of another episode
            tried(lambda: socket.create_connection(("127.0.0.1", port))),
            os.path.exists(other_socket),
            any(name.startswith("asyncrl-") for name in os.listdir("/tmp")),
            # another session, with its own key for calls
            tried(lambda: ask("x", base.replace("r2-1", "r0-1"), other_key)),
            tried(lambda: post(f"{url.replace('r2-1', 'r0-1')}/notes/a", other_key, {"value": 1})),
            # rewards, of its own and of another session
            tried(lambda: post(f"{url}/reward", own_key, {"reward": 1.0})),
            tried(lambda: post(f"{url.replace('r2-1', 'r0-1')}/reward", own_key, {"reward": 1.0})),
            tried(lambda: post(f"{url}/failed", own_key, {"tool": "a"})),
            "ASYNCRL_REWARD_KEY" in os.environ,
            write("/usr/x"), write("/x"), write("/gateway.sock"), write(__file__), write("/tmp/x"),
        ]
        ask(json.dumps(found))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the user `nobody` can read, whom programs are where the tests' user is root."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@asynccontextmanager
async def played(run: Path, agent: AgentConfig) -> AsyncIterator[ScriptedCoordinator]:
    (run / "initial").mkdir()
    write_tokenizer(run / "initial")
    write_key(run / GATEWAY_KEY, KEY)
    config = Config(
        task=TaskConfig(name="chain_sum", train_size=8, eval_size=2),
        engine=EngineConfig(context_tokens=1024),
        agent=agent,
    )
    waits, reporter = Waits(), Reporter(Waits())
    ours, theirs = memory_links()
    async with (
        ours,
        theirs,
        open_episodes(config, run, run / "initial", 0, waits, reporter) as opened,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(agents_actor, theirs, *opened, reporter)
        coordinator = ScriptedCoordinator(ours, "")
        yield coordinator
        await coordinator.send(Drain())
        while not isinstance((await coordinator.hear())[0], Drained):
            pass


@needs_programs
async def test_a_hostile_program_reaches_its_own_session_and_awards_nothing(
    tmp_path: Path, folder: Path
) -> None:
    script = folder / "agent.py"
    script.write_text(CLIENT + HOSTILE)
    with private_folder(KEY, 0) as sockets:
        other = sockets / "r0-1"
    with trio.fail_after(PATIENCE_S), socket.create_server(("127.0.0.1", 0)) as host:
        port, key = str(host.getsockname()[1]), capability(KEY, "r0-1", "call")
        run = (PYTHON, str(script), port, key, str(other))
        agent = AgentConfig(run=run, sandbox="bwrap", episode_s=PATIENCE_S)
        async with played(tmp_path, agent) as coordinator:
            await coordinator.play(0, prompt_index=0)
            victim, context = await coordinator.ask()
            assert "other" in context and stat.S_IMODE(other.stat().st_mode) == 0o600
            assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
            await coordinator.play(2, prompt_index=2)
            hostile, context = await coordinator.ask()
            reached = '[true, "no", false, false, 404, 404, 401, 404, 401, false'
            wrote = '"no", "no", "no", "no", "yes"]'
            assert f"{reached}, {wrote}" in context, context
            await coordinator.reply(hostile, "4$")
            assert (await coordinator.hear())[0] == Played(2, 1, "stop")
            await coordinator.play(1, prompt_index=1)
            award, _ = await coordinator.ask()
            await coordinator.reply(award, "4$")
            said, _ = await coordinator.hear()
            assert isinstance(said, Played) and (said.rollout, said.failed) == (1, "exit")
            assert said.text.startswith(
                "it printed a reward, and a program in the sandbox may give none"
            )
            await coordinator.reply(victim, "4$")
            assert (await coordinator.hear())[0] == Played(0, 1, "stop")
            assert not any(isinstance(message, GiveReward) for message in coordinator.heard)
        assert not sockets.exists() and script.read_text() == CLIENT + HOSTILE


AGENT = f"""
from asyncrl.agents import with_model
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.languages import program_of
from asyncrl.sandbox.programs.program import Program
from asyncrl.sandbox.programs.under_asyncio import run_in_asyncio

CLIENT = {CLIENT!r}

async def solve(client, episode):
    code = CLIENT + "print(ask('inside'), sorted(name for name in os.environ if 'KEY' in name))"
    program = program_of("python", code.encode(), Program(argv=(), seconds={PATIENCE_S}))
    ran = await run_in_asyncio(with_model(program, episode), Bubblewrap())
    assert ran.well and ran.stdout == b"4 ['ANTHROPIC_API_KEY', 'OPENAI_API_KEY']\\n", ran
    return 1.0
"""


@needs_programs
async def test_what_an_agents_tool_starts_calls_the_model_and_the_agent_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"agent_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(AGENT)
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    agent = AgentConfig(run=f"{name}:solve", sandbox="bwrap", episode_s=PATIENCE_S)
    with trio.fail_after(PATIENCE_S):
        async with played(tmp_path, agent) as coordinator:
            await coordinator.play(prompt_index=0)
            ask, context = await coordinator.ask()
            assert "inside" in context
            await coordinator.reply(ask, "4$")
            assert (await coordinator.hear())[0] == GiveReward(17, 1, None, 1.0)
            assert (await coordinator.hear())[0] == Played(17, 1, "stop")


OFFICIAL = """
import sys
sys.path.insert(0, sys.argv[1])
import openai
answer = openai.OpenAI().chat.completions.create(
    model="policy", messages=[{"role": "user", "content": "official"}])
assert answer.choices[0].message.content == "4"
"""
PACKAGES = sysconfig.get_path("purelib")


def same_version() -> bool:
    """True if the system's Python can import what this one can."""
    code = "import sys; print(sys.version_info[:2])"
    said = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout
    return said.strip() == str(sys.version_info[:2])


@pytest.mark.explore
@needs_programs
async def test_the_official_client_works_in_the_sandbox(tmp_path: Path, folder: Path) -> None:
    script = folder / "agent.py"
    script.write_text(OFFICIAL)
    refused = ""
    for python in (sys.executable, PYTHON):  # root's own may be nobody's to read
        run = (python, str(script), PACKAGES)
        try:
            refuse_without_sandbox(run, (PACKAGES,))
            break
        except ConfigError as error:
            refused = str(error)
    else:
        pytest.skip(f"programs cannot start a Python of this machine: {refused}")
    if python == PYTHON and not same_version():
        pytest.skip("the system's Python is another one than that of the tests' packages")
    agent = AgentConfig(run=run, paths=(PACKAGES,), sandbox="bwrap", episode_s=PATIENCE_S)
    with trio.fail_after(PATIENCE_S):
        async with played(tmp_path, agent) as coordinator:
            await coordinator.play(prompt_index=0)
            ask, context = await coordinator.ask()
            assert "official" in context
            await coordinator.reply(ask, "4$")
            assert (await coordinator.hear())[0] == Played(17, 1, "stop")


@needs_programs
def test_a_command_that_is_not_seen_inside_is_refused_before_a_run(folder: Path) -> None:
    refuse_without_sandbox((PYTHON, "-c", "pass"), ())
    refuse_without_sandbox((), ())
    (folder / "tool").write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="cannot start its command"):
        refuse_without_sandbox((str(folder / "tool"),), ())
    with pytest.raises(ConfigError, match=r"agent\.paths has '/no/such'"):
        refuse_without_sandbox((PYTHON,), ("/no/such",))


def test_a_machine_without_the_sandbox_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_sandbox.Bubblewrap, "missing", lambda self: "no user namespaces")
    with pytest.raises(ConfigError, match=r"does not have it \(no user namespaces\)"):
        refuse_without_sandbox((), ())


def test_a_command_sees_its_files_and_its_python(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "folder").mkdir()
    words = (PYTHON, str(tmp_path / "a.py"), str(tmp_path / "folder"), "--b")
    program = program_of_command(words, (str(tmp_path / "folder"),))
    assert program.argv == words
    assert {str(tmp_path / "a.py"), str(tmp_path / "folder")} <= set(program.paths)
    assert not set(program.paths) & {"/", str(tmp_path), str(Path.home())}


def test_without_a_socket_there_is_no_model() -> None:
    from fake_gateway import FakeGateway

    facts = FakeGateway(1).facts()
    with pytest.raises(agent_sandbox.NoSocketError, match=r"agent\.sandbox"):
        with_model(Program(argv=("true",)), facts)
    assert with_model(Program(argv=("true",)), FakeGateway(1).facts(socket=GATEWAY)).gateway
