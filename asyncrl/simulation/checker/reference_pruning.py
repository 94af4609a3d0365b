"""Answers that rules which end rollouts may give, worked out a second time. Invariant: no code is
shared with `asyncrl.algorithms.selection`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncrl.config import Config
from asyncrl.simulation.checker.reference_rollouts import ReferenceGroup, ReferenceRollout

CLOSE = 1e-6
"""Distance of a number from its threshold up to which both answers are right."""


class Due(NamedTuple):
    """An answer that is right: the reason of an end (empty: the rollout goes on), the tokens that
    are kept, and the chance to go on."""

    reason: str = ""
    kept: int = 0
    chance: float = 1.0


class ReferencePruning:
    """Of all prompts `longest`, the tokens of the longest right answer; `judged`, the numbers that
    describe each response that was asked about, and whether it was right; `counts`, the rollouts
    that were ended, by reason."""

    def __init__(self) -> None:
        self.longest: dict[int, int] = {}
        self.judged: list[tuple[list[float], bool]] = []
        self.counts: Counter[str] = Counter()

    def judge(self, seen: ReferenceRollout, right: bool) -> None:
        """A training rollout has its reward."""
        prompt = seen.group.event.prompt_index
        if right:
            self.longest[prompt] = max(self.longest.get(prompt, 0), len(seen.response) // 4)
        if seen.looked:
            self.judged.append((numbers(seen, seen.looked), right))


def numbers(seen: ReferenceRollout, tokens: int) -> list[float]:
    """The first tokens of a response in numbers: how many, their mean log-probability, how much is
    repeated, and the mean of the prompt's posterior."""
    ids = np.frombuffer(bytes(seen.ids), np.int32)[:tokens]
    logs = np.frombuffer(bytes(seen.behaviour), np.float32)[:tokens]
    runs = [tuple(ids[at : at + 4].tolist()) for at in range(len(ids) - 3)]
    a, b = seen.group.posterior
    mean = float(logs.astype(np.float64).mean()) if len(logs) else 0.0
    repeated = (len(runs) - len(set(runs))) / len(runs) if runs else 0.0
    return [float(len(logs)), mean, repeated, a / (a + b)]


def right_answers(
    config: Config,
    pruning: ReferencePruning,
    members: Sequence[tuple[int, ReferenceRollout | None]],
    seen: ReferenceRollout,
    tokens: int,
) -> list[Due]:
    """The answers that are right about the first `tokens` tokens of a rollout; `members` are those
    of its group by number, None where one has ended untrained. More than one where a number is
    close to its threshold."""
    share, group = config.rollout.prune_share, seen.group
    match config.rollout.prune:
        case "asyncrl.simulation.coin_rule:Coin":
            return [Due("coin", 0, share)]
        case "longest":
            cap = group.longest
            return [Due("longest", tokens) if 0 < cap <= tokens else Due()]
        case "converged":
            mean = _mean_distance(members, tokens)
            return _either(Due("converged", 0, 0.0), None if mean is None else share - mean)
        case "unlikely" if len(pruning.judged) >= 16:
            last = [right for _, right in pruning.judged[-512:]]
            bound = share * last.count(True) / len(last)
            chance = _chance(_weights(pruning.judged), numbers(seen, tokens))
            end = Due("unlikely", 0, max(0.1, chance / bound if bound else 1.0))
            return _either(end, bound - chance)
        case "balance" if len(pruning.judged) >= 16 and not seen.looked:
            return _balance(pruning, members, seen, tokens, share)
        case _:
            return [Due()]


def _either(end: Due, over: float | None) -> list[Due]:
    """The end where a number is over its threshold, else none; both where it is close."""
    if over is None:
        return [Due()]
    return [due for due, fits in ((end, over > -CLOSE), (Due(), over < CLOSE)) if fits]


def _balance(
    pruning: ReferencePruning,
    members: Sequence[tuple[int, ReferenceRollout | None]],
    seen: ReferenceRollout,
    tokens: int,
    share: float,
) -> list[Due]:
    weights, known, unknown = _weights(pruning.judged), list[float](), 0
    for id, other in members:
        if id == seen.id:
            continue
        if id in seen.group.rewards:
            known.append(float(id in seen.group.solved))
        elif other is not None and other.verdict is None and (other.sealed or other.looked):
            known.append(_chance(weights, numbers(other, tokens)))
        elif other is not None and other.verdict is None:
            unknown += 1
    wanted = math.ceil(share * len(members))
    if len(known) + unknown < wanted:
        return [Due()]
    end = Due("balance", 0, 0.0)
    if len(known) >= wanted:
        return [end]
    own = _chance(weights, numbers(seen, tokens)) - 0.5
    return _either(end, own * sum(chance - 0.5 for chance in known))


def _features(of: Sequence[float]) -> NDArray[np.float64]:
    tokens, mean, repeated, rate = of
    return np.array([1, mean, np.log2(1 + tokens) / 8, repeated, np.log(rate / (1 - rate))])


def _weights(judged: Sequence[tuple[list[float], bool]]) -> NDArray[np.float64]:
    """A Newton step for each of the last 512 responses, of all curvature so far."""
    weights, curvature = np.zeros(5), np.eye(5) / 4
    for of, right in judged[-512:]:
        x = _features(of)
        p = 1 / (1 + np.exp(-weights @ x))
        curvature += p * (1 - p) * np.outer(x, x)
        weights = weights + np.linalg.solve(curvature, x * (right - p))
    return weights


def _chance(weights: NDArray[np.float64], of: Sequence[float]) -> float:
    return float(1 / (1 + np.exp(-weights @ _features(of))))


def _mean_distance(
    members: Sequence[tuple[int, ReferenceRollout | None]], tokens: int
) -> float | None:
    """The mean edit distance of any two responses, as a share of their first tokens, at most 32;
    None where there are less than two, or one has fewer tokens and may get more."""
    size = min(32, tokens)
    begun = []
    for _, seen in members:
        if seen is None:
            continue
        if not seen.sealed and len(seen.versions) < size:
            return None
        begun.append(np.frombuffer(bytes(seen.ids), np.int32)[:size].tolist())
    pairs = [(a, b) for place, a in enumerate(begun) for b in begun[:place]]
    if not pairs:
        return None
    return sum(_distance(a, b) for a, b in pairs) / size / len(pairs)


def _distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Changes, by the diagonals that each number of them reaches."""
    n, m = len(one), len(other)
    reached = {0: _along(one, other, 0, 0)}
    for changes in range(n + m + 1):
        if reached.get(n - m, -1) >= n:
            return changes
        nearest = {}
        for diagonal in range(-changes - 1, changes + 2):
            best = max(
                reached.get(diagonal, -2) + 1,
                reached.get(diagonal - 1, -2) + 1,
                reached.get(diagonal + 1, -2),
            )
            best = min(best, n, m + diagonal)
            if best >= max(0, diagonal):
                nearest[diagonal] = _along(one, other, best, best - diagonal)
        reached = nearest
    raise AssertionError("each pair has a distance")


def _along(one: Sequence[int], other: Sequence[int], row: int, column: int) -> int:
    """The row to which both are alike from here."""
    while row < len(one) and column < len(other) and one[row] == other[column]:
        row, column = row + 1, column + 1
    return row


def group_members(
    group: ReferenceGroup, live: dict[int, ReferenceRollout]
) -> list[tuple[int, ReferenceRollout | None]]:
    """The members of a group by number."""
    return [(id, live.get(id)) for id in group.members]
