"""Choices that `train.keep` may make, worked out a second time: all of them, by trying. Invariant:
no code is shared with `asyncrl.algorithms.selection`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from itertools import combinations

from asyncrl.config import Config
from asyncrl.messages import Scored
from asyncrl.simulation.checker.reference_rollouts import ReferenceRollout

Choice = tuple[ReferenceRollout, ...]


def choices(config: Config, scored: Sequence[ReferenceRollout]) -> Iterator[Choice]:
    """Each choice that is right of a complete group whose members with a reward are `scored`."""
    keep, size = config.train.keep, len(scored)
    if keep == "all":
        yield tuple(scored)
        return
    count = min(size, config.train.keep_members or math.ceil(size / 2))
    possible = [*combinations(scored, count)]
    most = max((_spread(choice) for choice in possible), default=Fraction())
    for choice in possible:
        kept = {seen.id for seen in choice}
        others = [seen for seen in scored if seen.id not in kept]
        if (
            (keep == "top" and _before(others, choice))
            or (keep == "bottom" and _before(choice, others))
            or (keep == "top_bottom" and math.isclose(_spread(choice), most))
            or (keep == "roc" and _clean(choice, others))
        ):
            yield choice


def reward(seen: ReferenceRollout) -> float:
    """The reward of a rollout that has one."""
    assert isinstance(seen.verdict, Scored)
    return seen.verdict.reward


def _before(less: Collection[ReferenceRollout], more: Collection[ReferenceRollout]) -> bool:
    return max(map(reward, less), default=-math.inf) <= min(map(reward, more), default=math.inf)


def _spread(choice: Choice) -> Fraction:
    """The sum of the squared differences of all pairs."""
    rewards = [Fraction(reward(seen)) for seen in choice]
    return sum(((a - b) ** 2 for a, b in combinations(rewards, 2)), Fraction())


def _clean(choice: Choice, others: Sequence[ReferenceRollout]) -> bool:
    """True if right answers are kept in proportion, and those with the least to object to."""
    right, left = [seen for seen in choice if _right(seen)], [*filter(_right, others)]
    solved, size = len(right) + len(left), len(choice) + len(others)
    due = Fraction(len(choice) * solved, size)
    if 0 < solved < size and len(choice) > 1:
        due = min(max(due, Fraction(1)), Fraction(len(choice) - 1))
    worst = max(map(_objections, right), default=Fraction(-1))
    return abs(len(right) - due) <= Fraction(1, 2) and all(
        worst <= _objections(seen) for seen in left
    )


def _right(seen: ReferenceRollout) -> bool:
    return seen.id in seen.group.solved


def _objections(seen: ReferenceRollout) -> Fraction:
    """Objections to a right answer: failed calls among those of tools, and no answer or several."""
    turns, failed, answers = 1, 0, 0
    if (episode := seen.episode) is not None:
        turns = len(episode.turns)
        failed = sum(bool(episode.failed.get(call.id)) for call in episode.turns)
        answers = episode.names.count("answer")
    more = Fraction(answers - 1, max(turns, 1)) if answers else Fraction(seen.cut)
    calls = max(turns - 1, failed)
    return (Fraction(failed, calls) if calls else Fraction(1, 2)) + more
