"""A judge's verdict on the answers of a group: how they are shown, how its line is read, and the
rewards that follow. Pure.

Invariant: a line that is read has each answer once; an answer that it leaves out would else have a
place that nobody gave it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

_NUMBER = r"[0-9]{1,9}"
_SCORE = r"[-+]?[0-9]{1,9}(?:\.[0-9]+)?"
_PAIR = re.compile(rf"(?<![0-9])({_NUMBER})[\s*_`]*(?:=|:|->)[\s*_`]*({_SCORE})")
_ORDER = re.compile(rf"[\s*_`]*({_NUMBER}(?:[ \t]*[>=,][ \t]*{_NUMBER})*)")


def listed(answers: Sequence[str]) -> str:
    """The answers as a judge reads them, with a mark that follows from all of them: so no answer
    can know it, and pretend to be the beginning of another.

    >>> print(listed(["5"]))
    [answer 1, mark 352c26a1]
    5
    [end of answer 1, mark 352c26a1]
    """
    mark = hashlib.blake2b(msgspec.json.encode(list(answers)), digest_size=4).hexdigest()
    return "\n\n".join(
        f"[answer {number}, mark {mark}]\n{answer}\n[end of answer {number}, mark {mark}]"
        for number, answer in enumerate(answers, 1)
    )


def scores(said: str, count: int, highest: float) -> list[float]:
    """The score of each of `count` answers. Raises ValueError where one has none, or two.

    >>> scores(" 1 = 7, 2 = 3.5", 2, 10.0)
    [7.0, 3.5]
    """
    found = [(int(number), float(score)) for number, score in _PAIR.findall(said)]
    _check([number for number, _ in found], count)
    if not all(0 <= score <= highest for _, score in found):
        raise ValueError(f"a score is not between 0 and {highest:g} (judge.highest)")
    return [score for _, score in sorted(found)]


def places(said: str, count: int) -> list[int]:
    """The place of each of `count` answers, the best 0; equal ones have the same. Raises ValueError
    where one has none, or two.

    >>> places(" 3 > 1 = 2", 3)
    [1, 1, 0]
    """
    order = _ORDER.match(said)
    line = order[1] if order is not None else ""
    ranks = [[int(number) for number in part.split("=")] for part in re.split("[>,]", line) if part]
    _check([number for rank in ranks for number in rank], count)
    by_number = {number: place for place, rank in enumerate(ranks) for number in rank}
    return [by_number[number] for number in range(1, count + 1)]


def ranked(standing: Sequence[float]) -> list[float]:
    """The reward of each member of a group, from their places, the best the smallest: the share of
    the others that it is better than, and half of those that it equals, from 0 to 1. At least two
    members.

    The mean is always 1/2, and equal members have equal rewards (the Mann-Whitney statistic of a
    member against the others, over their number).

    >>> ranked([1, 1, 0])
    [0.25, 0.25, 1.0]
    """
    others = len(standing) - 1
    return [
        (sum((own < other) + 0.5 * (own == other) for other in standing) - 0.5) / others
        for own in standing
    ]


def _check(numbers: list[int], count: int) -> None:
    if sorted(numbers) != list(range(1, count + 1)):
        raise ValueError(f"it has not each of the {count} answers once")
