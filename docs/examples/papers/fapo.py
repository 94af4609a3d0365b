"""fapo.py: a judge that looks at right answers (FAPO, arXiv 2510.22543).

A wrong answer is worth -1, a right one 1, and a right one with a flawed step 1 - PENALTY, which is
0 as the authors have it. The judge is a generative reward model behind OpenAI's API. It reads
numbered paragraphs, and names the first with an error, or -1. Set `task.sandbox = "process"`: the
sandbox `strict` has no network."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.request import Request, urlopen

JUDGE = "http://127.0.0.1:30000/v1/chat/completions"
PENALTY = 1.0
ASKED = """Below are a problem and a solution in numbered paragraphs. Find the first paragraph with
an error. Put its number into \\boxed{{}}, or -1 if there is none.

Problem: {problem}

{solution}"""


def fapo(answer: str, line: Mapping[str, Any]) -> float:
    *_, last = ["", *re.findall(r"\\boxed\{([^{}]*)\}", answer)]
    if last.strip() != str(line["answer"]).strip():
        return -1.0  # a wrong answer needs no judge
    return 1.0 - PENALTY * (first_error(answer, line) >= 0)


def first_error(answer: str, line: Mapping[str, Any]) -> int:
    """The first paragraph with an error; -1: none. Raises where the judge gives no number, so that
    the answer has no verdict, which is not a reward."""
    paragraphs = [part for part in answer.split("\n\n") if part.strip()]
    solution = "\n".join(f"<paragraph_{n}>{part}" for n, part in enumerate(paragraphs))
    asked = ASKED.format(problem=line["prompt"], solution=solution)
    body = {"model": "judge", "messages": [{"role": "user", "content": asked}], "temperature": 0.0}
    request = Request(JUDGE, json.dumps(body).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=60) as reply:
        said = json.load(reply)["choices"][0]["message"]["content"]
    found = re.findall(r"\\boxed\{\s*(-?[0-9]{1,6})\s*\}", said)
    if not found or not -1 <= int(found[-1]) < len(paragraphs):
        raise ValueError(f"the judge names no paragraph: {said[-80:]!r}")
    return int(found[-1])
