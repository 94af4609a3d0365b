"""The programs of docs/examples/harnesses, each as it is, against a gateway with a scripted model,
which calls a tool of the harness, and says something when it has the result.

They need packages and command lines that asyncrl does not, so they run where `HARNESS_PYTHON` names
an interpreter that has them; what it lacks is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from gateway_world import KEY, Script, say, scripted, served, write_chat

from asyncrl.engines.protocol import Request

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


def test_harbors_task_folders_are_read(tmp_path: Path) -> None:
    """And one that is not whole is refused by name."""
    spec = importlib.util.spec_from_file_location("harbor_tasks", EXAMPLES / "harbor_tasks.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    task = tmp_path / "tasks" / "hello"
    (task / "tests").mkdir(parents=True)
    (task / "instruction.md").write_text("Create hello.txt.")
    (task / "task.toml").write_text(
        'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[environment]\ndocker_image = "a:1"\n'
    )
    [row] = found.rows(tmp_path)
    assert row["prompt"] == "Create hello.txt." and row["folder"] == str(task)
    assert (row["image"], row["agent"]) == ("a:1", {"timeout_sec": 60.0})
    (task / "instruction.md").unlink()
    with pytest.raises(ValueError, match=r"has a task.toml and no instruction\.md"):
        list(found.rows(tmp_path))


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
            base = f"{url}/sessions/r1-1"
            told = {
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "OPENAI_BASE_URL": f"{base}/v1",
                "ANTHROPIC_BASE_URL": base,
                "OPENAI_MODEL": "policy",
                "ANTHROPIC_MODEL": "policy",
                **dict.fromkeys(
                    ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), KEY
                ),
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
