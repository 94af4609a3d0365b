"""Baselines from earlier visits of a prompt. Invariant: a baseline depends on what was known at the
group's admission and on other members alone, so the gradient is unbiased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asyncrl.algorithms.advantages.advantage import (
    Advantage,
    RewardedSamples,
    check_rewards,
)
from asyncrl.algorithms.advantages.normalization import mean_of


class HistoryBaseline(Advantage):
    """`R - p`, where p is the mean of the Beta posterior of the prompt's solve rate from earlier
    visits, each with half the weight of the next (MSSR; without its shaping by entropy). A group
    may have one rollout; then set `rollout.k_min` to 1, too. For rewards from 0 to 1.

    >>> from asyncrl.messages import PromptFacts, Sample
    >>> one = Sample(9, 4, 1, 1, 1.0, [], member=0)
    >>> prompts = {4: PromptFacts(posterior=(1.0, 3.0))}
    >>> HistoryBaseline().of(RewardedSamples([one], {4: [1.0]}, {}, prompts=prompts))
    [0.75]
    """

    kind: ClassVar[str] = "history"
    equal_has_signal: ClassVar[bool] = True

    def of(self, batch: RewardedSamples) -> list[float]:
        values = []
        for sample in batch.samples:
            check_rewards(sample.group, (sample.reward,))
            values.append(sample.reward - batch.prompts[sample.group].solve_rate)
        return values


class V05(Advantage):
    """`R - b`, b between the prompt's history and the mean of the others (V0.5). With rewards r =
    2 R - 1 from -1 to 1, V = 2 p - 1 of the posterior mean p, and v the mean of the k other
    members' r: `b = w v + (1 - w) V`, `w = D / (D + 1/k)`, `D = max(0, (v - V)^2 - 1/k)`.

    The authors' v has the member's own reward, which makes b, and w, depend on it: the gradient is
    0.826 of the true one where four rollouts, of which 0.3 solve a prompt, have p = 0.1. Their V is
    a value model, which is not released. Values are in units of R.

    >>> shrunk_to_history([1.0, 1.0, 1.0, 1.0], 0.0)  # v = 1, V = -1: D = 3.75, w = 0.9375
    0.9375
    >>> shrunk_to_history([1.0, 0.0], 0.5)
    0.5
    """

    kind: ClassVar[str] = "v05"
    equal_has_signal: ClassVar[bool] = True

    def of(self, batch: RewardedSamples) -> list[float]:
        values = []
        for sample in batch.samples:
            rewards = batch.rewards.get(sample.group, ())
            check_rewards(sample.group, rewards)
            if sample.member is None or not 0 <= sample.member < len(rewards):
                raise ValueError(f"rollout {sample.rollout} does not name its member of the group")
            others = [*rewards[: sample.member], *rewards[sample.member + 1 :]]
            p = batch.prompts[sample.group].solve_rate
            values.append(sample.reward - shrunk_to_history(others, p))
        return values


def shrunk_to_history(others: Sequence[float], p: float) -> float:
    """The baseline of V0.5, in units of the rewards; `p` without others."""
    if not others:
        return p
    k, v, history = len(others), 2 * mean_of(others) - 1, 2 * p - 1
    distance = max(0.0, (v - history) ** 2 - 1 / k)
    weight = distance / (distance + 1 / k)
    return (weight * v + (1 - weight) * history + 1) / 2
