"""The loss of a packed batch: corrections, objective, and the weight of each token. Invariant: it
returns sums only, so that the step's gradient does not depend on how the step was split.

The objective's loss is over the tokens that corrections kept. Additional terms (`kl_tau`,
`entropy_bonus`) are over the tokens that count in the divisor, so that they are means: with
`loss_divisor = all` a rejected token is still regularized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.loss_mean import mean_weights
from asyncrl.algorithms.objectives import token_loss
from asyncrl.algorithms.ratios import log_ratio
from asyncrl.algorithms.tokens import Tokens
from asyncrl.config.losses import clip_bounds, loss_mean, objective_of, ratios_weigh
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.config.strategies import blamed
from asyncrl.staleness import proximal
from asyncrl.staleness.corrections import Folded, apply_corrections
from asyncrl.staleness.diagnostics import by_lag
from asyncrl.training.kl_terms import KlAdded
from asyncrl.training.sums import Sums

TRAINED, STALE, MEDIAN, NONFINITE, TRUNCATED, ERROR = range(6)
"""Outcomes of a response token. From 6 on an outcome is 6 + the index, in the list, of the
correction that rejected it."""
REASONS = ("", "stale", "median", "nonfinite", "truncated", "error")


class ResponseTokens(NamedTuple):
    """Facts of a packed batch's response tokens, each a tensor of shape [tokens]: the
    log-probability `behaviour` (float32), its `advantage` (float32), its `lag` and `sample_index`
    (int64), and `arrived` (bool): it may enter the loss. `share` (float32) is per sample: its part
    of a rollout. `leaves` (float32) says how often each token counts; None: all once. `start`
    (float32) is a token's log-probability under the policy that the step starts from; None where
    that is the current one. `own` (bool) is False for foreign tokens, which divergence by lag does
    not count; None: all are own. `turn` (int64) is the token's turn.
    """

    behaviour: Tensor
    advantage: Tensor
    lag: Tensor
    sample_index: Tensor
    arrived: Tensor
    share: Tensor
    turn: Tensor
    leaves: Tensor | None = None
    start: Tensor | None = None
    own: Tensor | None = None


class LossParts(NamedTuple):
    """`total`: the sum of the losses, a scalar with its gradient, to be divided by the step's
    divisor; None where no token has a loss. `outcome`: int64 [tokens], of the tokens that arrived.
    `sums`: the sums for the step's metrics."""

    total: Tensor | None
    outcome: Tensor
    sums: Sums


class Loss:
    """The loss of the settings. `budget` is the number of tokens that a response may have; raises
    ValueError where `loss_mean = constant` and it is missing."""

    def __init__(
        self, train: TrainConfig, staleness: StalenessConfig, budget: int | None = None
    ) -> None:
        self._corrections = staleness.correction
        self._objective, self._bounds = objective_of(train), clip_bounds(train)
        self._weighted = ratios_weigh(train, staleness)
        self._mean, self._divisor = loss_mean(train), train.loss_divisor
        self._kl_tau, self._entropy_bonus = train.kl_tau, train.entropy_bonus
        self._router_aux = train.router_aux
        if self._mean == "constant" and budget is None:
            raise ValueError("loss_mean is constant, which needs the budget of a response")
        self._budget = budget or 1

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of the outcomes, in their order; empty for trained."""
        return (*REASONS, *(entry.kind for entry in self._corrections))

    @property
    def learns_entropy(self) -> bool:
        """True if the loss includes the entropy of the tokens."""
        return self._entropy_bonus > 0

    @property
    def needs_entropy(self) -> bool:
        """True if the loss includes it, or a correction reads it."""
        return self.learns_entropy or any("entropy" in entry.reads for entry in self._corrections)

    @property
    def needs_whole_step(self) -> bool:
        """True if a correction compares tokens of different rollouts."""
        return any(entry.whole_step for entry in self._corrections)

    def tokens(
        self,
        facts: ResponseTokens,
        current: Tensor,
        prox: Tensor | None,
        added: KlAdded,
        entropy: Tensor | None = None,
    ) -> Tokens:
        """Response tokens in the form of corrections and objectives. `current` are their
        log-probabilities and `entropy` the entropies of their distributions, where needed; float32
        [tokens], with a gradient where there is one. `prox` are log-probabilities of the proximal
        policy; None where that is the behaviour policy. `added` are the terms of policies that do
        not learn."""
        ratios = proximal.log_ratios(current, facts.behaviour, prox)
        return Tokens(
            log_ratio=ratios.log_ratio,
            mismatch=ratios.mismatch,
            current=current,
            behaviour=facts.behaviour,
            advantage=facts.advantage + added.advantage,
            lag=facts.lag,
            sample_index=facts.sample_index,
            mask=facts.arrived & ratios.finite & added.finite,
            entropy=entropy,
            turn=facts.turn,
            own=facts.arrived.new_ones(facts.arrived.shape) if facts.own is None else facts.own,
        )

    def corrected(self, parts: Sequence[Tokens]) -> list[Folded]:
        """Apply the corrections to the tokens of several parts with different rollouts together.
        The first part gets the counts of corrections."""
        with blamed("correction", ", ".join(each.kind for each in self._corrections)):
            folded = apply_corrections(self._corrections, _joined(parts), weighted=self._weighted)
        sizes = [len(part.mask) for part in parts]
        pieces = zip(
            torch.split(folded.weight, sizes),
            torch.split(folded.kept, sizes),
            torch.split(folded.rejected_by, sizes),
            strict=True,
        )
        return [
            Folded(weight, kept, rejected_by, {} if number else folded.diagnostics)
            for number, (weight, kept, rejected_by) in enumerate(pieces)
        ]

    def of(
        self,
        facts: ResponseTokens,
        tokens: Tokens,
        corrected: Folded,
        added: KlAdded,
        balance: Tensor | None = None,
    ) -> LossParts:
        """Compute the loss of these tokens, at least one of which arrived. `balance` is the
        auxiliary loss of each, float32 [tokens], where there is one."""
        usable = tokens.mask
        kept = corrected.kept & usable
        with blamed("objective", self._objective.kind):
            minimized = token_loss(self._objective, tokens._replace(mask=kept), self._bounds)
        counted = kept if self._divisor == "kept" else usable
        weights = mean_weights(
            self._mean, counted, facts.sample_index, facts.share, self._budget, facts.leaves
        )
        each = corrected.weight * minimized.loss + added.loss.where(counted, 0.0)
        whole = log_ratio(tokens.current, facts.behaviour).value
        if self._kl_tau:
            each = each + self._kl_tau * whole.where(counted, 0.0).square()
        if self.learns_entropy:
            assert tokens.entropy is not None
            each = each - self._entropy_bonus * tokens.entropy.where(counted, 0.0)
        if balance is not None:
            each = each + self._router_aux * balance.where(counted, 0.0)
        total = (weights.of_token * each).sum()
        outcome = torch.where(usable, len(REASONS) + corrected.rejected_by, NONFINITE)
        outcome[kept] = TRAINED
        begun = whole if facts.start is None else log_ratio(facts.start, facts.behaviour).value
        own = usable if facts.own is None else usable & facts.own
        sums = Sums(
            trained=int(kept.sum()),
            arrived=int(facts.arrived.sum()),
            clipped=int(minimized.clipped.sum()),
            loss=float(total.detach()),
            divisor=weights.divisor,
            by_lag=by_lag(begun.detach(), own, facts.sample_index, facts.lag, kept & own),
            corrections=corrected.diagnostics,
            policies=added.sums(kept),
        )
        pulls = bool(
            self._kl_tau or self.learns_entropy or added.loss.requires_grad or balance is not None
        )
        pulled = pulls and bool(counted.any())
        return LossParts(total if pulled or kept.any() else None, outcome, sums)


def _joined(parts: Sequence[Tokens]) -> Tokens:
    """Join tokens of parts that have no rollout in common; the rollouts are renumbered."""
    if len(parts) == 1:
        return parts[0]
    numbered, before = list[Tokens](), 0
    for part in parts:
        numbered.append(part._replace(sample_index=part.sample_index + before))
        before += int(part.sample_index.max()) + 1 if part.sample_index.numel() else 0
    return Tokens._make(
        None if of_all[0] is None else torch.cat(of_all) for of_all in zip(*numbered, strict=True)
    )
