"""A calculator that the model may use: `agent.run = "asyncrl.agents.examples.calculator:solve"`.

The model is asked the task's prompt. It may call the tool, any number of times, and its last reply
is the answer, which the task's verifier judges.
"""

from __future__ import annotations

import json
import operator
from typing import TYPE_CHECKING, cast

from asyncrl.agents import MODEL, AgentEpisode

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

CALLS = 8
"""Replies, at most."""
OPERATIONS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
LARGEST = 10**12
NUMBER = {"type": "integer"}
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}},
        },
    }
    for name in OPERATIONS
]


async def solve(client: openai.AsyncOpenAI, episode: AgentEpisode) -> None:
    """Answer until the model calls no more tools."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": episode.prompt}]
    for _ in range(CALLS):
        answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        reply = answer.choices[0].message
        messages.append(cast("ChatCompletionMessageParam", reply.to_dict()))
        calls = [call for call in reply.tool_calls or [] if call.type == "function"]
        if not calls:
            return
        for call in calls:
            result = calculate(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def calculate(name: str, arguments: str) -> str:
    """Do what the model asks for, or return a text that says what was wrong with it.

    >>> calculate("add", '{"a": 2, "b": 3}'), calculate("add", '{"a": "2"}')
    ('5', 'error: a and b must be integers')
    """
    try:
        operands = json.loads(arguments)
        a, b = operands["a"], operands["b"]
        if type(a) is int and type(b) is int and max(abs(a), abs(b)) <= LARGEST:
            return str(OPERATIONS[name](a, b))
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    return "error: a and b must be integers" if name in OPERATIONS else "error: no such tool"
