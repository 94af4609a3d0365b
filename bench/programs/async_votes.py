"""openai, asynchronous: three answers at once, and the reward is the share of right ones."""

import asyncio
import json
import os

from openai import AsyncOpenAI

TEMPLATE = """Solve the following problem.

### Problem
{problem}

### Answer
"""


async def answer(client: AsyncOpenAI, problem: str) -> str:
    completion = await client.chat.completions.create(
        model=os.environ["OPENAI_MODEL"],
        messages=[{"role": "user", "content": TEMPLATE.format(problem=problem)}],
        max_tokens=48,
    )
    return (completion.choices[0].message.content or "").strip()


async def main() -> None:
    entry = json.loads(os.environ["ASYNCRL_ENTRY"])
    async with AsyncOpenAI() as client:
        answers = await asyncio.gather(*[answer(client, entry["question"]) for _ in range(3)])
    expected = str(entry["answer"])
    right = sum(found == expected for found in answers)
    print(json.dumps({"reward": right / len(answers)}))


asyncio.run(main())
