"""otr.py: given texts, token by token, as prompts of their own (One-Token Rollout, 2509.26313).

    python otr.py MODEL texts.txt > tokens.jsonl     # a line for each token of each text

A group is K tokens drawn at a place of the text: `rollout.max_new_tokens = 1`. A token is worth 1
if it is the text's, else OTHER. As published the reward is the advantage (`train.advantage =
"otr:Raw"`, `rollout.filter = "none"`); its expectation is (1 - OTHER) p times the gradient of
supervised learning, p being the chance of the text's token. `rloo` has the same expectation, and
in small groups more variance (1.4 times with three draws, on a toy)."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.algorithms.advantages import GroupAdvantage

OTHER = -0.1


def otr(answer: str, line: Mapping[str, Any]) -> float:
    return 1.0 if answer == line["answer"] else OTHER


class Raw(GroupAdvantage):
    """The reward itself."""

    equal_has_signal = True

    def of_group(self, rewards: Sequence[float]) -> list[float]:
        return list(rewards)


def lines(text: str, tokenizer: Any) -> Iterator[dict[str, str]]:
    """The places of a text, but those before which it is tokenized otherwise, or whose token is no
    text of its own."""
    ids = tokenizer.encode(text)
    for at in range(1, len(ids)):
        prompt, token = tokenizer.decode(ids[:at]), tokenizer.decode(ids[at : at + 1])
        if list(tokenizer.encode(prompt)) == list(ids[:at]) and "\ufffd" not in token:
            yield {"prompt": prompt, "answer": token}


if __name__ == "__main__":
    from asyncrl.tasks.text import Tokenizer

    model, texts = sys.argv[1:]
    for each in Path(texts).read_text().splitlines():
        for line in lines(each, Tokenizer(model)):
            print(json.dumps(line))
