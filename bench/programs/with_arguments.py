"""A class and argparse; the legacy completions endpoint."""

import argparse
import json
import os
import sys
from dataclasses import dataclass

from openai import OpenAI


@dataclass
class Solver:
    client: OpenAI
    model: str
    tokens: int

    def solve(self, question: str) -> str:
        prompt = f"Q: {question}\nA:"
        reply = self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=self.tokens, stop=["\n", "Q:"]
        )
        return reply.choices[0].text.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    row = json.loads(os.environ["ASYNCRL_ENTRY"])
    solver = Solver(OpenAI(), os.environ["OPENAI_MODEL"], options.tokens)
    answer = solver.solve(row["question"].strip())
    if options.verbose:
        print(f"{row['question']} -> {answer}", file=sys.stderr)
    print(json.dumps({"reward": float(answer == row["answer"])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
