"""sage.py: a chain of tasks with a library of skills (SAGE, arXiv 2512.17102).

A line is `{"prompt": …, "answer": "", "tasks": [{"prompt": …, "check": "assert …"}]}`. An episode
plays the tasks one after another. The functions of a solution that passes go to the library, and
later programs may call them. A task is worth 1 if its check passes, and BONUS more if it calls a
skill of an earlier task; so is the turn that wrote the skill, once. With `train.credit = "to_go"` a
turn also gets what its skill made possible later. The size of the bonus is ours: it is not in what
we read."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from asyncrl.agents import MODEL, AgentEpisode
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.languages import program_of
from asyncrl.sandbox.programs.program import Program
from asyncrl.sandbox.programs.under_asyncio import run_in_asyncio

BONUS = 0.5


def code_of(reply: str) -> str:
    """The last fenced block."""
    return (re.findall(r"```(?:python)?\n(.*?)```", reply, re.S) or [""])[-1]


def skills(code: str) -> dict[str, str]:
    """The functions of a program, by their name."""
    tree = ast.parse(code)
    return {d.name: ast.unparse(d) for d in tree.body if isinstance(d, ast.FunctionDef)}


def called(code: str) -> set[str]:
    calls = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


async def passes(code: str) -> bool:
    given = Program(argv=(), seconds=10.0)
    return (await run_in_asyncio(program_of("python", code.encode(), given), Bubblewrap())).well


async def solve(client: Any, episode: AgentEpisode) -> float:
    tasks: list[Mapping[str, str]] = episode.entry["tasks"]
    library, wrote, paid, total = dict[str, str](), dict[str, int](), set[int](), 0.0
    for turn, task in enumerate(tasks):
        shown = "\n\n".join([episode.prompt, *library.values(), task["prompt"]])
        messages = [{"role": "user", "content": shown}]
        answer = await client.chat.completions.create(model=MODEL, messages=messages)
        code = code_of(answer.choices[0].message.content or "")
        earned = dict.fromkeys(range(turn + 1), 0.0)
        if await passes("\n".join([*library.values(), code, task["check"]])):
            new = skills(code)
            used = {name for name in called(code) & library.keys() if name not in new}
            earned[turn] = 1.0 + BONUS * bool(used)
            for author in {wrote[name] for name in used} - paid:
                earned[author] += BONUS
                paid.add(author)
            library |= new
            wrote |= dict.fromkeys(new, turn)
        for call, reward in earned.items():
            if reward:
                await episode.reward(reward, call=call)
        total += sum(earned.values())
    return total
