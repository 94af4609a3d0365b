"""requests: no client at all, a post and its JSON."""

import json
import os

import requests

PROMPT = os.environ["ASYNCRL_PROMPT"]
ROWS = json.loads(os.environ["ASYNCRL_ENTRY"])


def chat(messages: list[dict[str, str]], **options: object) -> str:
    url = os.environ["OPENAI_BASE_URL"].rstrip("/") + "/chat/completions"
    response = requests.post(
        url,
        headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
        json={"model": os.environ["OPENAI_MODEL"], "messages": messages, **options},
        timeout=120,
    )
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


answer = chat(
    [
        {"role": "system", "content": "You are an expert. Think, then give only the final answer."},
        {"role": "user", "content": "Question: " + PROMPT},
    ],
    max_tokens=40,
    temperature=1.0,
    top_p=0.95,
)
print("answered:", answer)
print(json.dumps({"reward": 1.0 if answer.strip() == ROWS["answer"] else 0.0}))
