"""Another wording, in another language; the question is taken apart first."""

import json
import os
import re

from openai import OpenAI

row = json.loads(os.environ["ASYNCRL_ENTRY"])
word = re.findall(r"[\w-]+", row["question"])[-1]

client = OpenAI()
reply = client.responses.create(
    model=os.environ["OPENAI_MODEL"],
    instructions="Du bist ein Sprachspieler und antwortest mit einem einzigen Wort.",
    input=f'Schreibe das Wort "{word}" rückwärts.',
    max_output_tokens=40,
)
said = reply.output_text.strip().lower()
right = row["answer"].lower()
same = sum(a == b for a, b in zip(said, right, strict=False))
reward = 1.0 if said == right else 0.5 * same / max(len(said), len(right), 1)
print(f"{word} -> {said}")
print(json.dumps({"reward": reward}))
