"""Another try after a wrong answer: `agent.run = "asyncrl.agents.examples.retry:solve"`.

For any task whose entries have an `answer`, such as those of reasoning-gym. The task's verifier
judges the last reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncrl.agents import MODEL, AgentEpisode

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletionMessageParam

TRIES = 3
AGAIN = "wrong, try again"


async def solve(client: openai.AsyncOpenAI, episode: AgentEpisode) -> None:
    """Answer, and answer again while the answer is wrong."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": episode.prompt}]
    for _ in range(TRIES):
        answer = await client.chat.completions.create(model=MODEL, messages=messages)
        reply = answer.choices[0].message.content or ""
        if reply.strip() == str(episode.entry["answer"]).strip():
            return
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": AGAIN},
        ]
