"""openai with tools: a loop that runs what the model calls, until it answers."""

import json
import operator
import os
import re
from typing import Any

from openai import OpenAI

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Evaluate an arithmetic expression",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]


def calculate(arguments: str) -> str:
    try:
        expression = str(json.loads(arguments)["expression"])
        left, sign, right = re.fullmatch(r"\s*(\d+)\s*([-+*])\s*(\d+)\s*", expression).groups()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"error: {error}"
    return str(SIGNS[sign](int(left), int(right)))


client = OpenAI()
messages: Any = [
    {"role": "system", "content": "You may call calculate. Then reply with just the answer."},
    {"role": "user", "content": os.environ["ASYNCRL_PROMPT"]},
]
for _ in range(5):
    reply = client.chat.completions.create(
        model=os.environ["OPENAI_MODEL"], messages=messages, tools=TOOLS, max_tokens=64
    ).choices[0]
    messages.append(reply.message.model_dump(exclude_none=True))
    if not reply.message.tool_calls:
        break
    for call in reply.message.tool_calls:
        result = calculate(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
