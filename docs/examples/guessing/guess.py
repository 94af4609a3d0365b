"""guess.py: a game of two policies. The proposer sees some letters and gives a hint; the solver
sees the hint alone, and guesses the letters in their order. Each right letter counts for both."""


async def play(client, episode):
    async def said(policy, text):
        messages = [{"role": "user", "content": text}]
        reply = await client.chat.completions.create(model=policy, messages=messages)
        return (reply.choices[0].message.content or "").strip()

    hint = await said("proposer", episode.prompt)
    guess = await said("solver", f"sort {hint[:5]}:")
    wanted = episode.entry["answer"]
    right = sum(a == b for a, b in zip(wanted, guess, strict=False)) / len(wanted)
    brief = 1.0 if len(hint) <= 5 else 0.5  # the hint may be as long as the word
    return {"proposer": right * brief, "solver": right}
