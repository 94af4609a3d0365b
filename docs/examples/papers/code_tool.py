"""code_tool.py: a tool that executes Python (rStar2-Agent, arXiv 2508.20722).

The reward is the task's verifier's, of the last reply. A program that does not end well is a failed
call: `agent.mask_failed = ["python"]` keeps it out of the loss. The authors' stages are runs that
go on from each other's model: `rollout.max_new_tokens` 8000, then 12000, then 12000 with the
prompts that are not solved by all (`task.curriculum = "unsolved"`)."""

import json
from typing import Any

from asyncrl.agents import MODEL, AgentEpisode
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.languages import program_of
from asyncrl.sandbox.programs.program import Program
from asyncrl.sandbox.programs.under_asyncio import run_in_asyncio

CALLS, SHOWN = 8, 2_000
PARAMETERS = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
TOOLS = [{"type": "function", "function": {"name": "python", "parameters": PARAMETERS}}]


async def solve(client: Any, episode: AgentEpisode) -> None:
    messages: list[Any] = [{"role": "user", "content": episode.prompt}]
    for _ in range(CALLS):
        answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        reply = answer.choices[0].message
        messages.append(reply.to_dict())
        if not reply.tool_calls:
            return
        well = True
        for call in reply.tool_calls:
            ended_well, said = await executed(call.function.arguments)
            well = well and ended_well
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
        if not well:
            await episode.failed("python")


async def executed(arguments: str) -> tuple[bool, str]:
    """Run the code; True if it ended well, and what the model is told."""
    try:
        code = json.loads(arguments)["code"].encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False, "error: the arguments are no JSON object with a text `code`"
    program = program_of("python", code, Program(argv=(), seconds=10.0))
    ran = await run_in_asyncio(program, Bubblewrap())
    if ran.well:
        return True, ran.stdout.decode(errors="replace")[:SHOWN]
    said = "it took too long" if ran.timed_out else ran.stderr.decode(errors="replace")[-SHOWN:]
    return False, f"error: {said or f'it ended with {ran.code}'}"
