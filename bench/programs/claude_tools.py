"""anthropic: a tool that the model may use before it answers."""

import os
from typing import Any

import anthropic

TOOLS: Any = [
    {
        "name": "lookup",
        "description": "Look a word up in the dictionary.",
        "input_schema": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "the word"}},
            "required": ["word"],
        },
    }
]


def lookup(word: str) -> str:
    return f"{word}: a word of {len(word)} letters"


def main() -> None:
    client = anthropic.Anthropic()
    messages: Any = [{"role": "user", "content": os.environ["ASYNCRL_PROMPT"]}]
    for _ in range(4):
        reply = client.messages.create(
            model="claude-sonnet-4-5",
            system="You answer puzzles. Use tools if they help. End with the bare answer.",
            messages=messages,
            tools=TOOLS,
            max_tokens=80,
        )
        messages.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            break
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": lookup(str(block.input.get("word"))),
            }
            for block in reply.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    main()
