"""Guess the number: an environment. `agent.run = "asyncrl.agents.examples.guess_the_number:Game"`.

A line of the task is `{"prompt": "Guess a number from 1 to 16.", "answer": 11, "largest": 16}`. All
rollouts of a prompt have the same number, because they are compared with each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from asyncrl.agents import Step

LARGEST = 16
"""The largest number of a line that has none."""


class Game:
    """Says which numbers are left, for as many guesses as halving needs (5 for 16 numbers). A guess
    earns by how much it lowers log(1 + numbers left), as a share of all: finding the number earns 1
    in all, with luck or without, and nothing else does (a reward by potential: Ng, Harada, Russell
    1999).

    Example: of 15 numbers, 8 is told `9 to 15`, which are 7: one of the four times that 16 halves.
    """

    def reset(self, entry: Mapping[str, Any], seed: int) -> str:
        largest = int(entry.get("largest", LARGEST))
        self._number, self._left = int(entry["answer"]), largest.bit_length()
        if not 1 <= self._number <= largest or largest < 2:
            raise ValueError(f"the answer {self._number} is not one of the numbers 1 to {largest}")
        self._low, self._high, self._all = 1, largest, math.log(1 + largest)
        self._earned = 0.0
        return str(entry["prompt"])

    def step(self, reply: str) -> Step:
        self._left -= 1
        number = re.search(r"-?[0-9]{1,9}", reply)
        guess = int(number[0]) if number else None
        if guess == self._number:
            return Step("right", 1.0 - self._earned, done=True)
        before = self._high - self._low + 1
        if guess is not None and guess < self._number:
            self._low = max(self._low, guess + 1)
        elif guess is not None:
            self._high = min(self._high, guess - 1)
        left = self._high - self._low + 1
        reward = math.log((1 + before) / (1 + left)) / self._all
        self._earned += reward
        return Step(f"{self._low} to {self._high}", reward, done=self._left == 0)
