"""The order of causes. Invariant: an actor that ended because another one was gone is not named as
the cause, if that other one ended within the same second, whichever of the two was heard first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from asyncrl.messages import Exited
from asyncrl.runtime.processes.process import last_words

SAME_S = 1.0
"""Seconds between two ends of which one may be the cause of the other, in any order: a process
takes longer to exit than its links take to break."""
_CONSEQUENCES = frozenset({"CoordinatorLost", "LinkError", "LinkBroken", "EndOfStream", "RankLost"})
_BLAMED = re.compile(r"RankLost: rank ([0-9]+) of the trainer|WaitExpired: .* of rank ([0-9]+)\b")


class ActorEnd(NamedTuple):
    """The end of an actor, heard `at` a time, in seconds. It may be a `consequence` of another
    one's."""

    exited: Exited
    at: float
    consequence: bool


def is_consequence(output: str) -> bool:
    """True if the last words of an actor are that its link broke, or its coordinator was lost.

    >>> is_consequence("asyncrl.actors.errors.CoordinatorLost: the trainer lost its coordinator")
    True
    >>> is_consequence("RuntimeError: can't start new thread")
    False
    """
    name = last_words(output).partition(":")[0]
    return name.rpartition(".")[2] in _CONSEQUENCES


def blamed_rank(words: str) -> int | None:
    """The rank of the trainer that the last words of another one blame; None: they blame none.

    >>> blamed_rank("asyncrl.actors.errors.RankLost: rank 2 of the trainer was lost at its weights")
    2
    >>> blamed_rank("x.WaitExpired: trainer waited 9 s for weights of rank 1 on a, which is the …")
    1
    >>> blamed_rank("ValueError: no such rank")
    """
    found = _BLAMED.search(words)
    return None if found is None else int(found[1] or found[2])


def causes_first(ends: Sequence[ActorEnd]) -> list[Exited]:
    """The ends in the order in which they were heard, but each consequence behind the causes of the
    same second."""
    found = list(ends)
    for end in ends:
        if end.consequence:
            last = max(
                (
                    at
                    for at, other in enumerate(found)
                    if not other.consequence and abs(other.at - end.at) <= SAME_S
                ),
                default=-1,
            )
            here = found.index(end)
            if last > here:
                found.insert(last, found.pop(here))
    return [end.exited for end in found]
