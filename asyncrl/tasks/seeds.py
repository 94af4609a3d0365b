"""A task without prompts of its own, for an agent that brings its problems: each prompt is a seed.

Invariant: the seeds of the splits differ. The agent makes its problem of `entry["seed"]`, which is
the same for all members of a group, and gives the reward itself.
"""

from __future__ import annotations

from typing import Any

from asyncrl.config.schema import TaskConfig
from asyncrl.messages import Split


class SeedsTask:
    """`task.train_size` seeds from 0 on, and the `task.eval_size` seeds behind them.

    >>> task = SeedsTask(TaskConfig(name="seeds", train_size=8, eval_size=2))
    >>> task.prompt("train", 7), task.entry("evaluation", 1)
    ('7', {'seed': 9})
    """

    executes, writes = False, False
    languages = frozenset[str]()
    notes = ()

    def __init__(self, config: TaskConfig) -> None:
        self._sizes: dict[Split, int] = {"train": config.train_size, "evaluation": config.eval_size}

    def warm(self) -> str:
        return self.prompt("train", 0)

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def prompt(self, split: Split, prompt_index: int) -> str:
        return str(self.entry(split, prompt_index)["seed"])

    def answer(self, split: Split, prompt_index: int) -> str | None:
        return None

    def verify(self, split: Split, prompt_index: int, answer: str) -> float:
        raise LookupError("seeds have no verifier: the agent gives the reward")

    def entry(self, split: Split, prompt_index: int) -> dict[str, Any]:
        """The seed of a prompt. Raises IndexError outside the split."""
        if not 0 <= prompt_index < self.size(split):
            raise IndexError(
                f"seed {prompt_index} is outside the {split} split of {self.size(split)}"
            )
        return {"seed": prompt_index + (self.size("train") if split == "evaluation" else 0)}
