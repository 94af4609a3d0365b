"""Guess the number: an environment. `agent.run = "asyncrl.agents.examples.guess_the_number:Game"`.

A line of the task is `{"prompt": "Guess a number from 1 to 16.", "answer": 11}`. All rollouts of a
prompt are told one number, because they are compared with each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asyncrl.agents import Step

GUESSES = 5
"""Guesses that halving needs for 16 numbers."""


class Game:
    """Says `higher` or `lower`. The guess that is right earns 1."""

    def reset(self, entry: Mapping[str, Any], seed: int) -> str:
        self._number, self._left = int(entry["answer"]), GUESSES
        return str(entry["prompt"])

    def step(self, reply: str) -> Step:
        self._left -= 1
        guess = re.search(r"-?\d{1,9}", reply)
        if guess and int(guess[0]) == self._number:
            return Step("right", 1.0, done=True)
        if not guess:
            text = "say a number"
        else:
            text = "higher" if int(guess[0]) < self._number else "lower"
        return Step(text, 0.0, done=self._left == 0)
