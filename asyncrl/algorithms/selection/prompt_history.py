"""The history of each training prompt: its rewards at earlier visits. Invariant: it is a fold of
what was admitted and completed, and the `prior` of a group does not depend on that group.

A prompt is visited once for each of its groups. A visit counts half as much at each later one,
because the policy has moved on: the sums are of the latest visits, however many there were. There
is one entry of six numbers for each prompt that was ever admitted, and one byte for each of the
last `RECENT` groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SOLVED = 1.0
"""A rollout solved its prompt where its reward is at least this: what `asyncrl.tasks.Task.verify`
gives a fully right answer."""

KEPT = 0.5
"""The weight of a reward after one more visit of its prompt, as a share of its weight before."""

RECENT = 2**16
"""Number of the last groups of which it is remembered if they had a signal."""


class PromptRecord(msgspec.Struct, array_like=True, gc=False):
    """The record of one prompt. `cursor` is that of its last admission, and `visits` the number of
    its groups that completed. `count`, `total` and `solved` are weighted sums over their rewards,
    of 1, of the reward, and of 1 where it solved the prompt. `easy`: each member of the last group
    solved it.

    Example: visits with the rewards [1, 0] and then [1, 1] give a `count` of 0.5 · 2 + 2, and a
    `total` of 0.5 · 1 + 2.

    >>> history = History()
    >>> history.admit(7, 1)
    >>> history.record(7, [1.0, 0.0], 2)
    >>> history.record(7, [1.0, 1.0], 2)
    >>> history.seen[7]
    PromptRecord(cursor=1, visits=2, count=3.0, total=2.5, solved=2.5, easy=True)
    """

    cursor: int
    visits: int = 0
    count: float = 0.0
    total: float = 0.0
    solved: float = 0.0
    easy: bool = False


class History(msgspec.Struct):
    """Every prompt that was admitted for training, by its `prompt_index`. `cursor` is the place in
    the run's stream of prompts from which the next one is looked for. `recent` has one byte for
    each of the last groups that completed, the oldest first: 1 where its rewards differ, 2 where
    only those to go do, at any turn of an episode, else 0.

    >>> history = History()
    >>> history.admit(7, 1)
    >>> history.record(7, [1.0, 0.0], 2)
    >>> history.cursor, list(history.recent)
    (1, [1])
    """

    seen: dict[int, PromptRecord] = msgspec.field(default_factory=dict)
    cursor: int = 0
    recent: bytearray = msgspec.field(default_factory=bytearray)

    def admit(self, prompt_index: int, cursor: int) -> None:
        """A prompt was admitted, and the next one is looked for from `cursor` on. Not to be called
        for a prompt that starts again."""
        self.cursor = cursor
        if (seen := self.seen.get(prompt_index)) is None:
            self.seen[prompt_index] = PromptRecord(cursor)
        else:
            seen.cursor = cursor

    def record(
        self,
        prompt_index: int,
        rewards: Sequence[float],
        size: int,
        solved: int | None = None,
        *,
        differ_to_go: bool = False,
    ) -> None:
        """A group of `size` rollouts completed with these rewards; none if all of it failed.
        `solved` of them solved it; None: those with a reward of SOLVED. `differ_to_go`: at any turn
        its rewards to go differ. Each group is recorded once, when its last member is judged or
        buried, whatever becomes of it then. Raises KeyError for a prompt that was never
        admitted."""
        seen = self.seen[prompt_index]
        if solved is None:
            solved = sum(reward >= SOLVED for reward in rewards)
        seen.visits += 1
        seen.count = KEPT * seen.count + len(rewards)
        seen.total = KEPT * seen.total + sum(rewards)
        seen.solved = KEPT * seen.solved + solved
        seen.easy = solved == size
        self.recent.append(1 if len(set(rewards)) > 1 else 2 * differ_to_go)
        if len(self.recent) > RECENT:
            del self.recent[0]

    def prior(self, prompt_index: int) -> tuple[float, float]:
        """The mean of the rewards of earlier visits, and the weight that they have together; (0, 0)
        where there are none. Taken when a group is admitted, it cannot depend on that group."""
        seen = self.seen.get(prompt_index)
        return (
            (seen.total / seen.count, seen.count) if seen is not None and seen.count else (0.0, 0.0)
        )

    def posterior(self, prompt_index: int) -> tuple[float, float]:
        """Parameters (a, b) of the Beta distribution of the chance that a rollout solves the
        prompt, from a uniform prior: 1 + the weight of those that solved it, and 1 + the weight of
        those that did not. Both are at least 1."""
        seen = self.seen.get(prompt_index)
        return (1.0, 1.0) if seen is None else (1.0 + seen.solved, 1.0 + seen.count - seen.solved)


def with_signal(recent: bytes | bytearray, to_go: bool) -> int:
    """Number of groups in `recent` (`History.recent`) whose rewards differ; with `to_go`, or those
    to go.

    >>> with_signal(bytes([0, 1, 2, 1]), to_go=False), with_signal(bytes([0, 1, 2, 1]), to_go=True)
    (2, 3)
    """
    return recent.count(1) + (recent.count(2) if to_go else 0)
