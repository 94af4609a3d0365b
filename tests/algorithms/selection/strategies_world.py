"""Runs in miniature: a choice admits, and what it admitted is judged some admissions later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from msgspec import inspect

from asyncrl.algorithms.selection.curriculum import Curriculum
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config.schema import Section

Outcome = Callable[[int, int], list[float]]
"""The rewards of a group, from (item, admissions before)."""


def values(section: type[Section], setting: str) -> tuple[str, ...]:
    """Settings that run.toml may have."""
    told = inspect.type_info(section)
    assert isinstance(told, inspect.StructType)
    kind = next(field.type for field in told.fields if field.name == setting)
    assert isinstance(kind, inspect.Metadata) and isinstance(kind.type, inspect.LiteralType)
    return tuple(map(str, kind.type.values))


class Play:
    """Admits one group after another, and keeps `ahead` of them live."""

    def __init__(
        self, choice: Curriculum, outcome: Outcome, ahead: int = 0, history: History | None = None
    ) -> None:
        self.choice = choice
        self.outcome = outcome
        self.ahead = ahead
        self.history = history or History()
        self.live: deque[int] = deque()
        self.admitted: list[int] = []

    def step(self) -> bool:
        """Admit one. Whether there was one."""
        if (chosen := self.choice.next(self.history, self.live)) is None:
            return False
        self.history.admit(*chosen)
        self.live.append(chosen.prompt_index)
        self.admitted.append(chosen.prompt_index)
        while len(self.live) > self.ahead:
            prompt_index = self.live.popleft()
            rewards = self.outcome(prompt_index, len(self.admitted) - 1)
            self.history.record(prompt_index, rewards, len(rewards))
        return True

    def run(self, admissions: int) -> list[int]:
        """The items of so many more, or of as many as there are."""
        start = len(self.admitted)
        while len(self.admitted) < start + admissions and self.step():
            pass
        return self.admitted[start:]


def solving(chances: list[float], size: int = 8) -> Outcome:
    """Each rollout of item i solves it with chance `chances[i]`."""

    def outcome(prompt_index: int, at: int) -> list[float]:
        random = Random(f"{prompt_index}/{at}")
        return [float(random.random() < chances[prompt_index]) for _ in range(size)]

    return outcome
