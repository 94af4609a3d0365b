"""openai, streaming: the answer is printed as it comes."""

import os
import sys

import openai

client = openai.OpenAI(
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    max_retries=4,
)

prompt = os.environ["ASYNCRL_PROMPT"].strip()
stream = client.chat.completions.create(
    model="gpt-4o-mini",
    stream=True,
    max_tokens=64,
    messages=[
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": f'Here is a task for you:\n\n"{prompt}"\n\nYour answer:'},
    ],
)
for event in stream:
    if event.choices and event.choices[0].delta.content:
        sys.stdout.write(event.choices[0].delta.content)
        sys.stdout.flush()
print()
