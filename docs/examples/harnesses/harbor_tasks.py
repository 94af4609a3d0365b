"""Harbor's task folders (0.26): `python harbor_tasks.py FOLDER > tasks.jsonl`, and then

    [task]                     [agent]                              [sandbox]
    name = "data"              run = "./harbor_tasks.py:solve"      kind = "docker"
    path = "tasks.jsonl"

A task is a folder with instruction.md and task.toml, environment/ (a Dockerfile) and tests/. If
task.toml names no image, build it: `docker build -t localhost/harbor-NAME NAME/environment`. The
agent works in a container of it, into which tests/ is copied afterwards; test.sh leaves the reward.
"""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncrl.agents import MODEL, AgentEpisode
from asyncrl.sandbox.boxes.box import Box

TESTS, REWARD = "/tests", "/logs/verifier/reward"
CALLS, SHOWN, SECONDS = 30, 4_000, 600.0
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": PARAMETERS}}]


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The tasks below a folder, by name. Raises ValueError for one that cannot be played."""
    for settings in sorted(folder.rglob("task.toml")):
        task, said = settings.parent, tomllib.loads(settings.read_text())
        for needed in ("instruction.md", "tests/test.sh"):
            if not (task / needed).exists():
                raise ValueError(
                    f"{task} has a task.toml and no {needed}: it is no task of Harbor's"
                )
        verifier = said.get("verifier", {})
        if "environment" in verifier or verifier.get("environment_mode") == "separate":
            raise ValueError(f'{task}: set verifier.environment_mode = "shared" in its task.toml')
        yield {
            "prompt": (task / "instruction.md").read_text(),
            "answer": "",
            "folder": str(task.absolute()),
            "image": said.get("environment", {}).get("docker_image")
            or f"localhost/harbor-{task.name}",
            **{name: said.get(name, {}) for name in ("agent", "verifier")},
        }


async def solve(client: Any, episode: AgentEpisode) -> dict[str, float]:
    """Let the model run commands until it calls none, and then the task's tests."""
    messages: list[Any] = [*episode.messages]
    async with episode.sandbox() as box:
        for _ in range(CALLS):
            said = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
            reply = said.choices[0].message
            messages.append(reply.to_dict())
            if not reply.tool_calls:
                break
            for call in reply.tool_calls:
                shown = await executed(box, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
        return await judged(box, episode.entry)


async def executed(box: Box, arguments: str) -> str:
    """Run a command of the model, and return what it is told."""
    try:
        ran = await box.run(str(json.loads(arguments)["command"]), seconds=SECONDS)
    except (ValueError, LookupError, TypeError, RecursionError):
        return "error: the arguments are no JSON object with a text `command`"
    ended = "it took too long" if ran.timed_out else f"exit code {ran.code}"
    return f"{(ran.stdout + ran.stderr).decode(errors='replace')[-SHOWN:]}\n({ended})"


async def judged(box: Box, entry: dict[str, Any]) -> dict[str, float]:
    """The rewards that the tests leave, by name. Raises where they leave none."""
    for path, data in files(Path(entry["folder"], "tests")):
        await box.put(f"{TESTS}/{path}", data)
    begin = f"rm -f {REWARD}.txt {REWARD}.json; mkdir -p $(dirname {REWARD}); chmod +x {TESTS}/*.sh"
    verifier = entry["verifier"]
    ran = await box.run(
        f"{begin}; {TESTS}/test.sh",
        seconds=verifier.get("timeout_sec", SECONDS),
        environment=verifier.get("env", {}),
    )
    left = await box.run(f"cat {REWARD}.json 2>/dev/null || cat {REWARD}.txt")
    try:
        found = json.loads(left.stdout)
    except ValueError:
        raise RuntimeError(f"the tests left no reward: {ran.stderr[-200:]!r}") from None
    return found if isinstance(found, dict) else {"reward": float(found)}


def files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """The files below a folder, by their paths in it."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield file.relative_to(folder), file.read_bytes()


if __name__ == "__main__":
    for row in rows(Path(sys.argv[1])):
        print(json.dumps(row))
