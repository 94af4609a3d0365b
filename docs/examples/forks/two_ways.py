"""two_ways.py: an agent that forks. It asks twice, and twice more after each wrong answer."""

from asyncrl.agents import MODEL


async def solve(client, episode):
    wanted = episode.entry["answer"]

    async def earned(messages, share, may_fork):
        """The reward of all ends below these messages, at most `share`."""
        total = 0.0
        for _ in range(2):
            answer = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=8
            )
            reply = answer.choices[0].message.content
            right = reply.strip() == wanted
            if right or not may_fork:  # an end: it has its share of the reward
                await episode.reward(share / 2 * right)
                total += share / 2 * right
                continue
            pairs = zip(wanted, reply.strip().ljust(len(wanted)), strict=False)
            marks = "".join("+" if a == b else "-" for a, b in pairs)
            told = {"role": "user", "content": f"{marks} sort again:"}
            said = {"role": "assistant", "content": reply}
            total += await earned([*messages, said, told], share / 2, may_fork=False)
        return total

    return await earned([{"role": "user", "content": episode.prompt}], 1.0, may_fork=True)
