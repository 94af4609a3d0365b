"""openai, synchronous: a system message, one question, the verifier judges."""

import os

from openai import OpenAI

SYSTEM = "You are a helpful assistant. Answer with the result only, without an explanation."


def main() -> None:
    client = OpenAI()
    completion = client.chat.completions.create(
        model=os.environ["OPENAI_MODEL"],
        messages=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": os.environ["ASYNCRL_PROMPT"]},
        ],
        temperature=0.7,
        max_tokens=64,
    )
    print(completion.choices[0].message.content)


if __name__ == "__main__":
    main()
