"""How much better a rollout did than is expected of its prompt. Invariant: only members with a
verdict count; a group is known by its id.

Rewards are plain floats and all sums are of float64; what leaves is float32. A standard deviation
is always that of a sample (divided by n - 1, as TRL and verl have it), and never less than
STD_FLOOR. Rewards that are all equal, compared exactly, have no signal: zeros.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from asyncrl.ipc.messages import Sample
from staleness.baseline import WHOLE_STEP

Kind = Literal["grpo", "dr_grpo", "rloo", "mc_grpo", "gdpo", "reinforce_pp", "first_k"]
Rewards = Mapping[int, Sequence[float]]
Parts = Mapping[int, Sequence[Sequence[float]]]

STD_FLOOR = 1e-4
"""Smallest standard deviation divided by, in units of reward."""

LARGEST = 1e38
"""Largest reward, either sign: the difference of two still fits a float32."""

BY_MEMBER: frozenset[str] = frozenset({"mc_grpo", "gdpo"})
"""Kinds in which two members of one reward may fare differently: they need `Sample.member`."""


class Advantages(NamedTuple):
    """`value`: float32 [samples]. `trainable`: bool [samples]; a sample that is not must be left
    out of the loss and of what it is divided by, and its value is 0."""

    value: Tensor
    trainable: Tensor


def advantages(kind: Kind, samples: Sequence[Sample], rewards: Rewards, parts: Parts) -> Advantages:
    """Advantage of each sample of a micro-batch, and whether it is trained.

    `rewards[group]` has the rewards of all members with a verdict, trained here or elsewhere, in
    any number; `parts[group]` their parts in the same order, where there are any. Of a sample
    `reward` and `group` are read, and `member` and `baseline` where the kind needs them.

    - `grpo` (arXiv 2402.03300, section 4.1): `(R - mean) / std` of its group.
    - `dr_grpo` (arXiv 2503.20783): `R - mean` of its group.
    - `rloo` (arXiv 2402.14740): `R - mean of the others`; a member without others has no signal.
    - `mc_grpo` (arXiv 2601.22582): `(R - median) / std`. Where the number of verdicts is odd, one
      member of the median reward (the first) is not trainable. The authors divide by the median
      absolute deviation, which is 0 in every odd group of rewards 0 and 1.
    - `gdpo` (arXiv 2601.05242): `(R_j - mean) / std` in its group for each part j by itself, summed
      over the parts, and the sums normalized by their mean and std over all members of the step. A
      group without parts has its reward as the only one.
    - `reinforce_pp` (REINFORCE++, arXiv 2501.03262): `(R - mean) / std` over all members of the
      step, whatever their group.
    - `first_k`: `R - baseline`, which comes from `staleness.baseline`.

    Raises ValueError for a group without members, a reward or part that is not finite, parts of
    uneven number, a sample whose reward is not that of its member, and one without the `member` or
    `baseline` that the kind needs.
    """
    if kind == "first_k":
        return _all_trained([_above_baseline(sample) for sample in samples])
    if not samples:
        return _all_trained([])
    needed = (
        rewards
        if kind in WHOLE_STEP
        else {sample.group: rewards.get(sample.group, ()) for sample in samples}
    )
    for group, members in needed.items():
        _check(group, members)
    match kind:
        case "grpo" | "dr_grpo" | "rloo" | "mc_grpo":
            table = {group: _IN_GROUP[kind](members) for group, members in needed.items()}
        case "gdpo":
            table = _gdpo(needed, parts)
        case "reinforce_pp":
            table = _by_group(
                needed, _normalized([reward for members in needed.values() for reward in members])
            )
    places = [_place(kind, sample, needed.get(sample.group, ())) for sample in samples]
    values = [table[sample.group][place] for sample, place in zip(samples, places, strict=True)]
    if kind != "mc_grpo":
        return _all_trained(values)
    pivots = {group: _pivot(members) for group, members in needed.items()}
    trainable = [
        pivots[sample.group] != place for sample, place in zip(samples, places, strict=True)
    ]
    return Advantages(
        torch.tensor(values, dtype=torch.float32), torch.tensor(trainable, dtype=torch.bool)
    )


def _all_trained(values: list[float]) -> Advantages:
    return Advantages(
        torch.tensor(values, dtype=torch.float32), torch.ones(len(values), dtype=torch.bool)
    )


# --------------------------------------------------------------------------- of one set of rewards


def _mean(rewards: Sequence[float]) -> float:
    return math.fsum(rewards) / len(rewards)


def _equal(rewards: Sequence[float]) -> bool:
    return all(reward == rewards[0] for reward in rewards)


def _normalized(rewards: Sequence[float]) -> list[float]:
    """`(R - mean) / std`."""
    return _scaled(rewards, _mean(rewards))


def _scaled(rewards: Sequence[float], centre: float) -> list[float]:
    """`(R - centre) / std`, the std being around the mean whatever the centre."""
    if _equal(rewards):
        return [0.0] * len(rewards)
    std = max(statistics.stdev(rewards, _mean(rewards)), STD_FLOOR)
    return [(reward - centre) / std for reward in rewards]


def _centred(rewards: Sequence[float]) -> list[float]:
    """`R - mean`."""
    mean = _mean(rewards)
    return [0.0 if _equal(rewards) else reward - mean for reward in rewards]


def _left_out(rewards: Sequence[float]) -> list[float]:
    """`R - mean of the others`, which is `n / (n - 1)` of `R - mean`."""
    return [deviation * len(rewards) / max(1, len(rewards) - 1) for deviation in _centred(rewards)]


def _from_median(rewards: Sequence[float]) -> list[float]:
    """`(R - median) / std`."""
    return _scaled(rewards, statistics.median(rewards))


def _pivot(rewards: Sequence[float]) -> int | None:
    """Place of the member that the median is of; None where it lies between two."""
    return rewards.index(statistics.median(rewards)) if len(rewards) % 2 else None


_IN_GROUP: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "grpo": _normalized,
    "dr_grpo": _centred,
    "rloo": _left_out,
    "mc_grpo": _from_median,
}


# --------------------------------------------------------------------------------- of a whole step


def _by_group(rewards: Rewards, values: Sequence[float]) -> dict[int, list[float]]:
    """`values` of all members, one group after the other, cut into groups again."""
    source = iter(values)
    return {group: [next(source) for _ in members] for group, members in rewards.items()}


def _gdpo(rewards: Rewards, parts: Parts) -> dict[int, list[float]]:
    columns = {
        group: _columns(group, members, parts.get(group, ())) for group, members in rewards.items()
    }
    sums = [
        math.fsum(row)
        for of_group in columns.values()
        for row in zip(*map(_normalized, of_group), strict=True)
    ]
    table = _by_group(rewards, _normalized(sums))
    # The sums of a group are 0 on average, and so are all of them; but not to the last digit, and
    # no signal is exactly none.
    silent = {group for group, of_group in columns.items() if all(map(_equal, of_group))}
    return {
        group: [0.0] * len(values) if group in silent else values for group, values in table.items()
    }


def _columns(
    group: int, rewards: Sequence[float], parts: Sequence[Sequence[float]]
) -> list[Sequence[float]]:
    """The rewards of a group for each part; its own rewards where there are no parts."""
    if not any(parts):
        return [rewards]
    if len(parts) != len(rewards) or len(set(map(len, parts))) > 1:
        raise ValueError(
            f"group {group} has {len(rewards)} rewards, of {[len(row) for row in parts]} parts; "
            "each must have as many"
        )
    columns: list[Sequence[float]] = list(zip(*parts, strict=True))
    for column in columns:
        _check(group, column)
    return columns


# ------------------------------------------------------------------------------------- of a sample


def _check(group: int, rewards: Sequence[float]) -> None:
    if not rewards:
        raise ValueError(
            f"group {group} has no member with a verdict, so its samples have no advantage; "
            "leave it out of the micro-batch"
        )
    if not all(abs(reward) <= LARGEST for reward in rewards):
        raise ValueError(
            f"group {group} has a reward that is not finite; a verifier without an answer must "
            "give NoVerdict"
        )


def _place(kind: str, sample: Sample, rewards: Sequence[float]) -> int:
    """Place of a sample among the rewards of its group."""
    if sample.member is None and kind not in BY_MEMBER and sample.reward in rewards:
        return rewards.index(sample.reward)
    if sample.member is None and kind in BY_MEMBER:
        raise ValueError(
            f"rollout {sample.rollout} does not say which member of its group it is, and for "
            f"{kind} it must"
        )
    if (
        sample.member is None
        or not 0 <= sample.member < len(rewards)
        or rewards[sample.member] != sample.reward
    ):
        raise ValueError(
            f"rollout {sample.rollout} has a reward of {sample.reward}, which is not its "
            f"member's in group {sample.group}"
        )
    return sample.member


def _above_baseline(sample: Sample) -> float:
    if sample.baseline is None:
        raise ValueError(
            f"rollout {sample.rollout} came without the baseline that first_k subtracts"
        )
    _check(sample.group, (sample.reward, sample.baseline))
    return sample.reward - sample.baseline
