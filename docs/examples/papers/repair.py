"""repair.py: an agent that repairs a repository, judged by hidden tests (SWE-rebench V2, SWE-Next).

A line of data is {"prompt": …, "answer": "", "image": …, "path": …, "commit": …, "tests": {PATH:
TEXT}, "command": […]}: the container image of this task alone, the repository in it, the hidden
tests, and what runs them. "setup" may be a shell script that prepares a fresh sandbox.

    [agent]                             [sandbox]
    run = "./repair.py:solve"           kind = "docker"

The agent never sees the tests, nor the history in which the fix may be. Its patch is judged in a
fresh sandbox, in which none of its processes was. Only files that match `only` count, if it is
given: a patch could add a conftest.py that lets every test pass."""

import json
from typing import Any

from asyncrl.agents import MODEL, AgentEpisode
from asyncrl.sandbox.boxes.box import Box
from asyncrl.sandbox.boxes.repository import forget_history, hidden_tests, patch_of

CALLS, SHOWN, SECONDS = 30, 4_000, 120.0
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": PARAMETERS}}]


async def solve(client: Any, episode: AgentEpisode) -> float:
    entry = episode.entry
    path = entry.get("path", ".")
    async with episode.sandbox() as box:
        commit = await prepared(box, entry)
        await repair(client, episode, box, path)
        patch = await patch_of(box, commit, path)
    async with episode.sandbox() as fresh:
        await prepared(fresh, entry)
        ran = await hidden_tests(
            fresh, patch, entry["tests"], entry["command"], path=path, only=entry.get("only", ())
        )
    return float(ran.well)


async def prepared(box: Box, entry: dict[str, Any]) -> str:
    """Set a sandbox up; returns the only commit that its repository has."""
    if setup := entry.get("setup"):
        ran = await box.run(setup, seconds=600)
        if not ran.well:
            raise RuntimeError(f"setup failed: {ran.stderr[-200:]!r}")
    return await forget_history(box, entry.get("path", "."), entry.get("commit", "HEAD"))


async def repair(client: Any, episode: AgentEpisode, box: Box, path: str) -> None:
    """Let the model run commands until it calls none."""
    messages: list[Any] = [*episode.messages]
    for _ in range(CALLS):
        answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        reply = answer.choices[0].message
        messages.append(reply.to_dict())
        if not reply.tool_calls:
            return
        for call in reply.tool_calls:
            said = await executed(box, call.function.arguments, path)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


async def executed(box: Box, arguments: str, path: str) -> str:
    """Run a command of the model, and return what it is told."""
    try:
        ran = await box.run(str(json.loads(arguments)["command"]), cwd=path, seconds=SECONDS)
    except (ValueError, LookupError, TypeError, RecursionError):
        return "error: the arguments are no JSON object with a text `command`"
    ended = "it took too long" if ran.timed_out else f"exit code {ran.code}"
    return f"{(ran.stdout + ran.stderr).decode(errors='replace')[-SHOWN:]}\n({ended})"
