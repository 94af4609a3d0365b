"""Off-policy sequence masking."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens, count_rollouts, sum_by_rollout
from asyncrl.staleness.corrections.correction import Corrected, Correction, keep


class Opsm(Correction, frozen=True):
    """Reject rollouts of negative advantage that the current policy has left behind (DeepSeek-V3.2,
    arXiv 2512.02556): such a rollout is rejected where the mean of `behaviour - current` is over
    `hi` nats. Diagnostics: `rollouts` rejected.

    Both rollouts have become half as likely a token; the first did badly:

    >>> from asyncrl.staleness.corrections.examples import tokens
    >>> some = tokens(ratios=[0.5, 0.5], advantage=[-1.0, 1.0])
    >>> Opsm(hi=0.1).apply(some, some.mask).kept.tolist()
    [False, True]
    """

    kind: ClassVar[str] = "opsm"
    reads: ClassVar[frozenset[str]] = frozenset({"current", "behaviour", "advantage"})
    by_rollout: ClassVar[bool] = True

    hi: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "largest mean fall in log-probability of such a rollout that is kept, in nats"
            ),
        ),
    ] = 1e-4

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        behaviour, current = (
            log.where(mask, 0.0).double() for log in (tokens.behaviour, tokens.current)
        )
        left = sum_by_rollout(behaviour - current, mask, tokens.sample_index).mean > self.hi
        kept = mask & ~(left[tokens.sample_index] & (tokens.advantage < 0))
        return keep(kept, {"rollouts": count_rollouts(mask & ~kept, tokens.sample_index)})
