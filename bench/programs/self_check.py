"""Two turns: an answer, and a look at it; the last reply counts."""

import os
import threading

from openai import OpenAI

client = OpenAI(timeout=200)
MODEL = os.environ["OPENAI_MODEL"]


def ask(history: list, text: str) -> None:
    history.append({"role": "user", "content": text})
    reply = client.chat.completions.create(model=MODEL, messages=history, max_tokens=40)
    history.append({"role": "assistant", "content": reply.choices[0].message.content or ""})


def main() -> None:
    history: list = [{"role": "system", "content": "You are a careful problem solver."}]
    ask(history, os.environ["ASYNCRL_PROMPT"])
    ask(
        history,
        "Check your answer step by step. If it is wrong, correct it. Reply with the answer only.",
    )
    print(history[-1]["content"])


thread = threading.Thread(target=main)
thread.start()
thread.join()
