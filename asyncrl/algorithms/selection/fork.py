"""Rules that fork a rollout while it is generated (`rollout.fork`). Invariant: whether it forks at
a place is a function of the tokens before that place. So a resumed run decides alike, and the
expected gradient is the true one (`by_root.py`), which it is not where a rule has seen the token
that comes next (docs/rewards.md).

`off`        no rollout
`depths`     each, at every `rollout.fork_after` tokens (as BranchGRPO)
`surprise`   where the last tokens were surprising (fork_surprise.py)
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from typing import ClassVar, NamedTuple, Protocol

from asyncrl.messages import PromptFacts


class ForkPoint(NamedTuple):
    """A place in a response: all ids before it (`int32`), the log-probabilities of those that this
    rollout has sampled itself (`float32`; the last ones, as a fork begins with its parent's), and
    what was known of the prompt.

    >>> ForkPoint(array("i", [5, 7]), array("f", [-1.0, -3.0])).tokens
    2
    """

    ids: array[int]
    logprobs: array[float]
    prompt: PromptFacts = PromptFacts()

    @property
    def tokens(self) -> int:
        return len(self.ids)


class ForkRule(Protocol):
    """Rule that forks rollouts. `every` is `rollout.fork_after`; docs/extending.md adds one. It has
    no state of its own.

    >>> class AfterALine(ForkRule):
    ...     def __init__(self, every): ...
    ...     def forks(self, point):
    ...         return point.ids[-1] == 10
    >>> AfterALine(8).forks(ForkPoint(array("i", [5, 10]), array("f", [-1.0, -1.0])))
    True
    """

    def __init__(self, every: int) -> None: ...

    @abstractmethod
    def forks(self, point: ForkPoint) -> bool:
        """Say whether a rollout forks here. It is asked at each `rollout.fork_after` tokens of a
        response that goes on, as long as the rollout has leaves to give."""
        ...


class NoForks(ForkRule):
    """No rollout forks.

    >>> NoForks(8).forks(ForkPoint(array("i", [5]), array("f", [-1.0])))
    False
    """

    kind: ClassVar[str] = "off"

    def __init__(self, every: int) -> None: ...

    def forks(self, point: ForkPoint) -> bool:
        return False


class AtDepths(ForkRule):
    """Each rollout forks wherever it is asked about.

    >>> AtDepths(8).forks(ForkPoint(array("i", [5]), array("f", [-1.0])))
    True
    """

    kind: ClassVar[str] = "depths"

    def __init__(self, every: int) -> None: ...

    def forks(self, point: ForkPoint) -> bool:
        return True
