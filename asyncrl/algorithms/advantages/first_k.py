"""The advantage of a rollout that is trained before its whole group is judged."""

from __future__ import annotations

from typing import ClassVar, Literal

from asyncrl.algorithms.advantages.advantage import Advantage, RewardedSamples, check_rewards


class FirstK(Advantage):
    """`R - baseline`, where the baseline is the mean of the first k of the others that were judged
    (see `asyncrl.algorithms.advantages.baseline`, also for remaining biases). The sample carries
    it.

    >>> from asyncrl.messages import Sample
    >>> sample = Sample(
    ...     rollout=9, group=4, prompt_tokens=1, response_tokens=1, reward=1.0, spans=[],
    ...     baseline=0.25,
    ... )
    >>> FirstK().of(RewardedSamples([sample], {}, {}))
    [0.75]
    """

    kind: ClassVar[str] = "first_k"
    unit: ClassVar[Literal["group", "rollout"]] = "rollout"
    settings: ClassVar[frozenset[str]] = frozenset({"prior_visits"})

    def of(self, batch: RewardedSamples) -> list[float]:
        values = []
        for sample in batch.samples:
            if sample.baseline is None:
                raise ValueError(
                    f"rollout {sample.rollout} came without the baseline that first_k subtracts"
                )
            check_rewards(sample.group, (sample.reward, sample.baseline))
            values.append(sample.reward - sample.baseline)
        return values
