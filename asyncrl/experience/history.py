"""What is known of each training prompt from earlier visits. Invariant: it is a fold of what was
admitted and completed, and no group is in what was known when it was admitted.

A prompt is visited once for each of its groups. What a visit showed is forgotten by half at each
later one, because the policy has moved on: so the sums are of the latest visits, however many there
were. There is one entry for each prompt that was ever admitted, of six numbers, and one byte for
each of the last `RECENT` groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SOLVED = 1.0
"""A rollout solved its prompt where its reward is at least this: what `asyncrl.tasks.Task.verify`
gives a fully right answer."""

KEPT = 0.5
"""What a reward counts for after one more visit of its prompt, as a share of what it counted
before."""

RECENT = 2**16
"""The groups of which it is remembered whether they had a signal."""


class PromptRecord(msgspec.Struct, array_like=True, gc=False):
    """One prompt. `cursor` is that of its last admission, `visits` its groups that completed. Over
    the rewards of these, earlier visits counting for less: `count` of them, their sum `total`, and
    how many `solved` it. `easy`: each member of the last group solved it."""

    cursor: int
    visits: int = 0
    count: float = 0.0
    total: float = 0.0
    solved: float = 0.0
    easy: bool = False


class History(msgspec.Struct):
    """Every prompt that was admitted for training, by its item. `cursor` is where the next prompt
    is looked for in the run's stream of prompts; `recent` has for each of the last groups that
    completed, the oldest first, 1 where its rewards differ and else 0."""

    seen: dict[int, PromptRecord] = msgspec.field(default_factory=dict)
    cursor: int = 0
    recent: bytearray = msgspec.field(default_factory=bytearray)

    def admit(self, prompt_index: int, cursor: int) -> None:
        """A new prompt was admitted, and the next one is looked for from `cursor` on. One that is
        started again is not admitted anew."""
        self.cursor = cursor
        if (seen := self.seen.get(prompt_index)) is None:
            self.seen[prompt_index] = PromptRecord(cursor)
        else:
            seen.cursor = cursor

    def record(self, prompt_index: int, rewards: Sequence[float], size: int) -> None:
        """A group of `size` rollouts completed, and these are the rewards there are; all of it
        failed where there is none. Each group is recorded once, when its last member is judged or
        buried, whatever becomes of it then. Raises KeyError for an item never admitted."""
        seen = self.seen[prompt_index]
        solved = sum(reward >= SOLVED for reward in rewards)
        seen.visits += 1
        seen.count = KEPT * seen.count + len(rewards)
        seen.total = KEPT * seen.total + sum(rewards)
        seen.solved = KEPT * seen.solved + solved
        seen.easy = solved == size
        self.recent.append(len(set(rewards)) > 1)
        if len(self.recent) > RECENT:
            del self.recent[0]

    def prior(self, prompt_index: int) -> tuple[float, float]:
        """Mean of the rewards of earlier visits, and how many they count for; (0, 0) where there
        are none. Taken when a group is admitted, it cannot depend on that group."""
        seen = self.seen.get(prompt_index)
        return (
            (seen.total / seen.count, seen.count) if seen is not None and seen.count else (0.0, 0.0)
        )

    def posterior(self, prompt_index: int) -> tuple[float, float]:
        """(a, b) of the Beta distribution of the chance that a rollout solves the prompt: 1 + those
        that solved it, and 1 + those that did not, from a uniform prior. Both are at least 1."""
        seen = self.seen.get(prompt_index)
        return (1.0, 1.0) if seen is None else (1.0 + seen.solved, 1.0 + seen.count - seen.solved)
