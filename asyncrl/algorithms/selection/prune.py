"""Rules that end a rollout before its response is complete (`rollout.prune`). Invariant: a decision
is a function of the seed and of what the journal has, so a resumed run decides alike.

`none`        no rollout
`unlikely`    one that probably fails, by a draw (prune_unlikely.py)
`balance`     one that the group has enough of: likely right ones, or likely wrong ones (ARRoL;
              prune_balance.py)
`converged`   one of a group whose members begin alike (Selective Rollout; prune_converged.py)
`longest`     one longer than any right answer to its prompt, which is kept as cut there (DART;
              prune_longest.py)

A choice that looks at how a response begins changes the expected gradient, unless it is made by a
draw and weighted by its chance (`rollout.prune_weight`); docs/rewards.md has the numbers.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import ClassVar, NamedTuple, Protocol

from asyncrl.algorithms.selection.live_group import LiveGroup


class Ending(NamedTuple):
    """An end of the rollout that was asked about, for a `reason` of small letters. Its first `kept`
    tokens are trained, as a response that was cut there; with 0 none. It goes on all the same with
    this `chance`.

    >>> Ending("too_long", kept=64).chance
    0.0
    """

    reason: str
    kept: int = 0
    chance: float = 0.0


class PruneRule(Protocol):
    """Rule that ends rollouts. `share` is `rollout.prune_share`, over 0 and below 1;
    docs/extending.md adds one. It has no state of its own.

    >>> class Repeats(PruneRule):
    ...     def __init__(self, share):
    ...         self._share = share
    ...     def ends(self, group):
    ...         repeats = group.beginning(group.member).repetition > self._share
    ...         return Ending("repeats") if repeats else None
    >>> from array import array
    >>> from asyncrl.algorithms.selection.live_group import LiveMember
    >>> nine = array("i", [5] * 9).tobytes(), array("f", [-1.0] * 9).tobytes()
    >>> Repeats(0.5).ends(LiveGroup([LiveMember("live", 9, *nine)], 0))
    Ending(reason='repeats', kept=0, chance=0.0)
    """

    def __init__(self, share: float) -> None: ...

    @abstractmethod
    def ends(self, group: LiveGroup) -> Ending | None:
        """Say whether the member that is asked about ends here; None: it goes on. It is asked each
        `rollout.prune_after` tokens, of a rollout of one turn that is trained."""
        ...


class NoPruning(PruneRule):
    """No rollout is ended.

    >>> from asyncrl.algorithms.selection.live_group import LiveMember
    >>> NoPruning(0.5).ends(LiveGroup([LiveMember("live", 9)], 0))
    """

    kind: ClassVar[str] = "none"

    def __init__(self, share: float) -> None: ...

    def ends(self, group: LiveGroup) -> Ending | None:
        return None


def goes_on(chance: float, seed: int, key: int, tokens: int) -> bool:
    """Draw whether a rollout of this key goes on after so many tokens.

    >>> goes_on(0.0, 1, 2, 8), goes_on(1.0, 1, 2, 8)
    (False, True)
    """
    return random.Random(f"prune/{seed}/{key}/{tokens}").random() < chance
