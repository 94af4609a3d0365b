"""The history of each training prompt: its rewards at earlier visits. Invariant: it is a fold of
admissions and completions, and the `prior` of a group does not depend on that group.

A prompt is visited once for each of its groups. Each later visit halves the weight of a visit,
because the policy has changed since: the sums follow the latest visits, however many there were. It
has one entry of seven numbers for each prompt that was ever admitted, and one byte for each of the
last `RECENT` groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from asyncrl.algorithms.selection.beginnings import Beginning, JudgedBeginning

Signal = Literal["rewards", "to_go", "below"]
"""Numbers that may differ in a group: the rewards of its members, those to go at a turn, or those
below a turn. An advantage by turn may have a signal in groups of equal rewards."""

TO_GO, BELOW = 2, 4
"""Marks of a group of equal rewards in `History.recent`, which are added."""

SOLVED = 1.0
"""The reward from which on a rollout solved its prompt: that of `asyncrl.tasks.Task.verify` for a
fully correct answer."""

KEPT = 0.5
"""The weight of a reward after one more visit of its prompt, as a share of its weight before."""

RECENT = 2**16
"""Number of the last groups whose signal is remembered."""

JUDGED = 512
"""Number of the last responses whose beginning and end are remembered."""


class PromptRecord(msgspec.Struct, array_like=True, gc=False):
    """The record of one prompt. `cursor` is that of its last admission, and `visits` the number of
    its groups that completed. `count`, `total` and `solved` are weighted sums over their rewards,
    of 1, of the reward, and of 1 where it solved the prompt. `easy`: each member of the last group
    solved it. `longest` is the number of tokens of the longest right answer.

    Example: visits with the rewards [1, 0] and then [1, 1] give a `count` of 0.5 · 2 + 2, and a
    `total` of 0.5 · 1 + 2.

    >>> history = History()
    >>> history.admit(7, 1)
    >>> history.record(7, [1.0, 0.0], 2)
    >>> history.record(7, [1.0, 1.0], 2)
    >>> history.seen[7]
    PromptRecord(cursor=1, visits=2, count=3.0, total=2.5, solved=2.5, easy=True, longest=0)
    """

    cursor: int
    visits: int = 0
    count: float = 0.0
    total: float = 0.0
    solved: float = 0.0
    easy: bool = False
    longest: int = 0


class History(msgspec.Struct):
    """Every prompt that was admitted for training, by its `prompt_index`. `cursor` is the position
    in the run's stream of prompts from which the next one is searched. `recent` has one byte for
    each of the last groups that completed, the oldest first: 1 where its rewards differ; where they
    are equal, TO_GO if the rewards to go differ, at any turn of an episode, and BELOW if those
    below a turn do. `groups` and `rollouts` count all that were ever started, restarted groups and
    the members by which groups grew included. `judged` has the last `JUDGED` responses with a
    reward about which a rule was asked (`rollout.prune`), the oldest first, and `judged_count`
    counts all of them.

    >>> history = History()
    >>> history.admit(7, 1)
    >>> history.record(7, [1.0, 0.0], 2)
    >>> history.cursor, list(history.recent)
    (1, [1])
    """

    seen: dict[int, PromptRecord] = msgspec.field(default_factory=dict)
    cursor: int = 0
    recent: bytearray = msgspec.field(default_factory=bytearray)
    groups: int = 0
    rollouts: int = 0
    judged: list[JudgedBeginning] = msgspec.field(default_factory=list)
    judged_count: int = 0

    def answered(self, prompt_index: int, tokens: int) -> None:
        """Record a right answer of this many tokens to an admitted prompt."""
        seen = self.seen[prompt_index]
        seen.longest = max(seen.longest, tokens)

    def longest(self, prompt_index: int) -> int:
        """The number of tokens of the longest right answer; 0 where there was none."""
        seen = self.seen.get(prompt_index)
        return 0 if seen is None else seen.longest

    def judge(self, beginning: Beginning, right: bool) -> None:
        """Record the end of a response about which a rule was asked."""
        self.judged.append(JudgedBeginning(beginning, right))
        self.judged_count += 1
        if len(self.judged) > JUDGED:
            del self.judged[0]

    def sized(self, groups: int, rollouts: int) -> None:
        """Count started groups, and started rollouts of these or of earlier ones."""
        self.groups += groups
        self.rollouts += rollouts

    def admit(self, prompt_index: int, cursor: int) -> None:
        """Record an admitted prompt; the next one is searched from `cursor` on. Do not call it for
        a restarted prompt."""
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
        differ: bool | None = None,
        differ_to_go: bool = False,
        differ_below: bool = False,
    ) -> None:
        """Record a completed group of `size` rollouts with these rewards; none if all of it failed.
        `solved` of them solved it; None: those with a reward of SOLVED. `differ`: the rewards of
        all that is trained of it differ, foreign answers included; None: if these do.
        `differ_to_go`: its rewards to go differ at any turn; `differ_below`: those below a turn do.
        Each group is recorded once, when its last member is judged or buried, whatever happens to
        it then. Raises KeyError for a prompt that was never admitted."""
        seen = self.seen[prompt_index]
        if solved is None:
            solved = sum(reward >= SOLVED for reward in rewards)
        seen.visits += 1
        seen.count = KEPT * seen.count + len(rewards)
        seen.total = KEPT * seen.total + sum(rewards)
        seen.solved = KEPT * seen.solved + solved
        seen.easy = solved == size
        equal = TO_GO * differ_to_go + BELOW * differ_below
        if differ is None:
            differ = len(set(rewards)) > 1
        self.recent.append(1 if differ else equal)
        if len(self.recent) > RECENT:
            del self.recent[0]

    def prior(self, prompt_index: int) -> tuple[float, float]:
        """The mean of the rewards of earlier visits, and their total weight; (0, 0) where there are
        none. It is read when a group is admitted, so it cannot depend on that group."""
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


def with_signal(recent: bytes | bytearray, signal: Signal = "rewards") -> int:
    """Number of groups in `recent` (`History.recent`) whose rewards differ, or where they are equal
    those to go, or those below turns.

    >>> recent = bytes([0, 1, TO_GO, 1, TO_GO + BELOW, BELOW])
    >>> with_signal(recent), with_signal(recent, "to_go"), with_signal(recent, "below")
    (2, 4, 4)
    """
    bit = {"rewards": 0, "to_go": TO_GO, "below": BELOW}[signal]
    return sum(
        recent.count(kind) for kind in range(1, TO_GO + BELOW + 1) if kind == 1 or kind & bit
    )
