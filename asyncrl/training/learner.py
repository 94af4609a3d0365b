"""One optimizer step from many micro-batches. Invariant: the gradient is the same however the
rollouts are split.

The loss of a step is a sum over its tokens, divided according to `train.loss_mean`. Each
micro-batch adds the gradient of its own sum, and the division happens once, when the step is closed
and the divisor is known. Values of a whole rollout can be computed because a rollout is never split
over packed batches.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.balance import RoutedTokens
from asyncrl.algorithms.tokens import Tokens
from asyncrl.config.losses import (
    clips_nothing,
    credited,
    group_weight_of,
    minibatch_rule_of,
    one_update,
)
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.config.strategies import blamed
from asyncrl.messages import MeasureLoss, MicroBatch, ScoreProximal, TokenCount
from asyncrl.staleness import proximal
from asyncrl.staleness.corrections import Folded
from asyncrl.staleness.vcpo import learning_rate_scale
from asyncrl.training.batch import Batch, read
from asyncrl.training.chunked_logits import Entropy, LogitFigures
from asyncrl.training.expert_balance import ExpertBalance
from asyncrl.training.forward import figures, shares
from asyncrl.training.gradients import token_advantages
from asyncrl.training.held import HeldBatch, HeldPart, carry, minibatches
from asyncrl.training.kl_terms import KlAdded, KlTerms, Served
from asyncrl.training.linear import accelerate
from asyncrl.training.loss import ERROR, MEDIAN, STALE, TRAINED, TRUNCATED, Loss, ResponseTokens
from asyncrl.training.master_weights import MasterWeights
from asyncrl.training.optimizer import optimizer_of
from asyncrl.training.packing import PackedBatch
from asyncrl.training.proximal_logprobs import ProximalLogprobs
from asyncrl.training.ranks.by_all import measured_by_all, scored_by_all
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.recomputation import AS_IT_IS, ON_HOST, recompute
from asyncrl.training.schedule import learning_rate
from asyncrl.training.shown_images import TrainedImages
from asyncrl.training.sums import Sums
from asyncrl.training.supervised import SupervisedLoss
from asyncrl.training.token_counts import token_counts
from asyncrl.training.weight_average import WeightAverage

logger = logging.getLogger(__name__)
NOTHING_SERVED: Served = MappingProxyType({})


class Updated(NamedTuple):
    """One update: the gradient's `norm` before clipping, the learning `rate`, its `scale`, and
    whether the weights changed (`taken`). `supervised`: the mean loss of its examples."""

    norm: float
    rate: float
    scale: float
    taken: bool
    supervised: float


class Learner:
    """A model and its optimizer, which changes `master_weights`. `version` counts the steps
    taken, from that of the checkpoint or 0.

    `temperature` is that of sampling, `budget` the tokens that a response may have. Dropout stays
    off: current and behaviour log-probabilities must be of the same policy. `past` has the scores
    of earlier versions, where the proximal policy is one of them. `counts` are the results of
    `accumulate` for micro-batches that were held until the last step was closed. `kl_terms` are the
    terms of policies that do not learn; `supervised` is the loss of examples. `rank` is this
    process's rank among those that train the model, with its shards; all ranks get the same calls.
    `images` are those of the run's prompts, for a model that reads them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        train: TrainConfig,
        staleness: StalenessConfig,
        temperature: float,
        version: int = 0,
        *,
        budget: int | None = None,
        kl_terms: KlTerms | None = None,
        supervised: SupervisedLoss | None = None,
        rank: Rank = ALONE,
        images: TrainedImages | None = None,
    ) -> None:
        model.train(False)
        accelerate(model)
        if train.recompute_activations:
            recompute(model, ON_HOST if train.offload_activations else AS_IT_IS)
        self.model = model
        self.balance = ExpertBalance(model, train)
        self.version = version
        self.master_weights = MasterWeights(model, rank.computes(model))
        self.optimizer = optimizer_of(self._changed, train)
        most = {"boundary": max(1, staleness.max_lag), "snapshot": staleness.max_lag}.get(
            staleness.proximal
        )
        self.proximal_logprobs = (
            None if most is None else ProximalLogprobs(model, temperature, most, rank, images)
        )
        self.kl_terms = kl_terms or KlTerms()
        self._supervised = supervised
        self.average = (
            WeightAverage(model, self.master_weights, train.ema, rank) if train.ema else None
        )
        self.rank = rank
        self.images = images
        self._train, self._staleness, self._temperature = train, staleness, temperature
        self._loss = Loss(train, staleness, budget)
        self._advantage, self._group_weight = credited(train), group_weight_of(train)
        self._minibatches = minibatch_rule_of(train)
        if clips_nothing(train, staleness):
            logger.warning(
                "proximal is recompute: the ratio of the objective is 1, and clipping does nothing"
            )
        self._holds = (
            not one_update(train) or self._loss.needs_whole_step
        )  # micro-batches wait for the end of their step
        self._held = list[HeldBatch]()
        self._sums = Sums()  # of the next update
        self._whole = Sums()  # of the step so far, without those
        self.counts: list[TokenCount] = []

    @property
    def _changed(self) -> list[torch.nn.Parameter]:
        """The weights that the optimizer changes."""
        return [master for _, master in self.master_weights.named()]

    def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview | bytes]) -> None:
        """Score the texts of the message, and keep the scores, while the weights are those of its
        step. Raises ValueError where the proximal policy is not `boundary`, the buffer does not fit
        the message, or the message is of another step."""
        if self._staleness.proximal != "boundary" or self.proximal_logprobs is None:
            raise ValueError(
                f"texts to be scored came, but the proximal policy is {self._staleness.proximal}"
            )
        if message.step != self.version:
            raise ValueError(
                f"texts to be scored at the end of step {message.step} came while step "
                f"{self.version} was being accumulated"
            )
        self.proximal_logprobs.score_proximal(message, buffers, self.version)

    def measure(
        self, message: MeasureLoss, buffers: Sequence[memoryview | bytes]
    ) -> tuple[float, int]:
        """The sum of the losses (nats) of the marked tokens of held-out samples, and their number;
        the gradients that are being accumulated do not change. All ranks get the sum. Raises
        ValueError where samples and buffers do not match."""
        batch = MicroBatch(self.version, message.index, message.samples, {})
        tensors = self._read(batch, buffers)
        every = scored_by_all(self.rank, self.model, tensors.packed, 1.0)
        return -sum(float(scores.sum()) for scores in every), len(tensors.mask)

    def accumulate(
        self,
        batch: MicroBatch,
        buffers: Sequence[memoryview | bytes],
        served: Served = NOTHING_SERVED,
    ) -> list[TokenCount]:
        """Add the gradient of a micro-batch, or hold it until the step is closed; `buffers` are the
        buffers of `MicroBatch`, `served` the log-probabilities of its sampled tokens by servers
        (`KlTerms.scores`). Returns, for each sample of a batch that is not held, the outcomes of
        its response tokens: trained, or discarded as `stale`, `truncated` or `error` (masked on
        arrival), `median` (its rollout is the one that others are compared with), `nonfinite` (a
        log-probability that is no number), or as the kind of the correction that rejected it.
        Raises ValueError where batch and buffers do not match, or the batch is of another step."""
        if batch.step != self.version:
            raise ValueError(
                f"a micro-batch of step {batch.step} came while step {self.version} was being "
                "accumulated"
            )
        if not batch.samples:
            return []
        tensors = self._read(batch, buffers)
        tensors = self.balance.recorded(tensors)
        tensors = tensors._replace(scores=self.kl_terms.scores(tensors, served))
        batch = self.kl_terms.rewarded(batch, tensors)
        advantage, trainable, weights = token_advantages(
            batch,
            tensors,
            self.model,
            self._advantage,
            self._temperature,
            self._group_weight,
            self._train,
            self.rank,
        )
        tensors = tensors._replace(weights=weights)
        scores = self._scores(batch, tensors, trainable)
        counts = list[TokenCount]()
        if self._holds:
            self._held.append(self._hold(batch, tensors, advantage, trainable, scores))
        else:
            outcomes = torch.full_like(tensors.sample_index, -1)
            for index in self.rank.share(tensors.packed):
                if index is None:
                    self.rank.keep_up(self.model)
                else:
                    packed = tensors.packed[index]
                    outcome = self._add(tensors, packed, advantage, trainable, scores)
                    outcomes[packed.tokens] = outcome.cpu()
            outcomes = self.rank.joined(outcomes)
            counts = token_counts(batch.samples, tensors.sample_index, outcomes, self._loss.reasons)
        if (
            self.proximal_logprobs
            and scores is not None
            and self._train.replay_groups
            and self._staleness.proximal == "boundary"
        ):
            self.proximal_logprobs.remember(batch.samples, self._of_all(tensors, scores))
        return counts

    def _read(self, batch: MicroBatch, buffers: Sequence[memoryview | bytes]) -> Batch:
        return read(
            batch,
            buffers,
            shared=shares(self.model),
            device=self.model.device.type,
            ranks=self.rank.lanes,
            images=self.images,
        )

    def _scores(self, batch: MicroBatch, tensors: Batch, trainable: Tensor) -> Tensor | None:
        """Log-probabilities of a micro-batch's tokens under a proximal policy whose weights are not
        the current ones, float32 [tokens], NaN where none is known; None where there is no such
        policy. All ranks call this alike."""
        arrived = _arrived(tensors, trainable)
        if self.proximal_logprobs:
            known = self.proximal_logprobs.known(batch.samples)
            return self.proximal_logprobs.completed(known, tensors.packed, tensors.version, arrived)
        if self._staleness.proximal != "ema":
            return None
        assert self.average is not None
        wanted = [packed for packed in tensors.packed if arrived[packed.tokens].any()]
        scores = torch.full_like(tensors.behaviour, math.nan)
        found = self.average.scores(wanted, self._temperature)
        for packed, of_packed in zip(wanted, found, strict=True):
            scores[packed.tokens] = of_packed
        return scores

    def _of_all(self, tensors: Batch, scores: Tensor) -> Tensor:
        """Scores of a micro-batch's tokens, each as the rank has it that has trained the token."""
        own = torch.zeros_like(scores)
        for index in self.rank.share(tensors.packed):
            if index is not None:
                tokens = tensors.packed[index].tokens
                own[tokens] = scores[tokens]
        return self.rank.added(own)

    def _add(
        self,
        batch: Batch,
        packed: PackedBatch,
        advantage: Tensor,
        trainable: Tensor,
        scores: Tensor | None,
    ) -> Tensor:
        """Add the gradient of the sum of a packed batch's losses; returns the outcome of each of
        its response tokens, int64 [tokens]. `advantage` and `scores` are float32 [tokens of the
        batch], `trainable` is bool [samples]."""
        facts, outcome = self._facts(batch, packed, advantage, trainable)
        if not facts.arrived.any():
            self.rank.keep_up(self.model)
            return outcome
        routed = self.balance.tokens()
        current, entropy = self._predict(packed, routed)
        facts = facts._replace(behaviour=known_behaviour(facts.behaviour, current, facts.own))
        prox, unknown = self._proximal(packed, current, facts, scores)
        added = self.kl_terms.added(batch, packed.tokens, current)
        tokens = self._loss.tokens(facts, current, prox, added, entropy)
        (corrected,) = self._loss.corrected([tokens])
        self._sums = self._sums.merge(Sums(proximal_unknown=unknown, routed=routed.sums))
        trained = self._backward(facts, tokens, corrected, added, routed.losses)
        return torch.where(facts.arrived, trained, outcome)

    def _hold(
        self,
        batch: MicroBatch,
        tensors: Batch,
        advantage: Tensor,
        trainable: Tensor,
        scores: Tensor | None,
    ) -> HeldBatch:
        """Hold a micro-batch with its scores before the first update of its step."""
        start, prox, entropies = (torch.zeros_like(tensors.behaviour) for _ in range(3))
        for index in self.rank.share(tensors.packed):
            if index is None:
                self.rank.keep_up(self.model, backward=False)
                continue
            packed = tensors.packed[index]
            facts, _ = self._facts(tensors, packed, advantage, trainable)
            if not facts.arrived.any():
                self.rank.keep_up(self.model, backward=False)
                continue
            with torch.no_grad():
                current, entropy = self._predict(packed)
            proximal_logprobs, unknown = self._proximal(packed, current, facts, scores)
            self._sums = self._sums.merge(Sums(proximal_unknown=unknown))
            for of_all, of_packed in (
                (start, current),
                (prox, proximal_logprobs),
                (entropies, entropy),
            ):
                if of_packed is not None:
                    of_all[packed.tokens] = of_packed.cpu()
        # an update may give another rank these tokens
        start, prox, entropies = map(self.rank.added, (start, prox, entropies))
        tensors = tensors._replace(behaviour=known_behaviour(tensors.behaviour, start, tensors.own))
        if self._minibatches.by_turn:  # a turn is in one sequence
            tensors = tensors._replace(share=torch.ones_like(tensors.share))
        return HeldBatch(
            batch.samples,
            tensors,
            advantage,
            trainable,
            start,
            entropies if self._loss.needs_entropy else None,
            None if self._staleness.proximal == "behaviour" else prox,
            torch.full_like(tensors.sample_index, -1),
            torch.ones(len(batch.samples), dtype=torch.float64),
        )

    def _update_with(self, parts: Sequence[HeldPart], number: int) -> Updated:
        """Update with a minibatch. At `number` 0 the weights are those the step starts from."""
        known = self._known(parts, first=number == 0) if self._loss.needs_whole_step else None
        for index in self.rank.share([packed for _, packed in parts]):
            if index is None:
                self.rank.keep_up(self.model)
                continue
            held, packed = parts[index]
            facts, outcome = self._facts(held.batch, packed, held.weighed, held.trainable)
            if not facts.arrived.any():
                self.rank.keep_up(self.model)
            else:
                routed = self.balance.tokens()
                current, entropy = self._predict(packed, routed)
                self._sums = self._sums.merge(Sums(routed=routed.sums))
                added = self.kl_terms.added(held.batch, packed.tokens, current)
                prox = held.proximal(packed, current)
                tokens = self._loss.tokens(facts, current, prox, added, entropy)
                (corrected,) = self._loss.corrected([tokens]) if known is None else [known[index]]
                facts = facts._replace(start=held.start[packed.tokens].to(outcome.device))
                trained = self._backward(facts, tokens, corrected, added, routed.losses)
                outcome = torch.where(facts.arrived, trained, outcome)
            held.settle(packed, outcome, TRAINED)
        return self._update(number)

    def _made(self, parts: Sequence[HeldPart], number: int, count: int) -> Updated:
        """Update with minibatch `number` of `count`, and carry what it changed to later ones."""
        made = self._update_with(parts, number)
        if self._minibatches.carries and number + 1 < count:
            arrived = [
                _arrived(held.batch, held.trainable)[packed.tokens] for held, packed in parts
            ]
            scores = scored_by_all(
                self.rank, self.model, [packed for _, packed in parts], self._temperature
            )
            with blamed("minibatch rule", self._train.minibatch_by):
                carry(self._minibatches, parts, arrived, scores)
        return made

    def _known(self, parts: Sequence[HeldPart], *, first: bool) -> list[Folded]:
        """Corrections of a whole minibatch. It costs a forward pass where the weights have changed
        since the start of the step."""
        every = list[Tokens]()
        arrived = [
            bool(_arrived(held.batch, held.trainable)[packed.tokens].any())
            for held, packed in parts
        ]
        moved = [packed for (_, packed), any_ in zip(parts, arrived, strict=True) if any_]
        measures = 1 + self._loss.needs_entropy
        now = iter(
            () if first else measured_by_all(self.rank, self.model, moved, self._measures, measures)
        )
        for (held, packed), any_ in zip(parts, arrived, strict=True):
            facts, _ = self._facts(held.batch, packed, held.weighed, held.trainable)
            if first or not any_:
                current = held.start[packed.tokens]
                entropy = None if held.entropy is None else held.entropy[packed.tokens]
            else:
                current, *rest = next(now)
                entropy = rest[0] if rest else None
            current = current.to(facts.lag.device)
            entropy = None if entropy is None else entropy.to(facts.lag.device)
            added = self.kl_terms.added(held.batch, packed.tokens, current)
            prox = held.proximal(packed, current)
            every.append(self._loss.tokens(facts, current, prox, added, entropy))
        return self._loss.corrected(every)

    def _facts(
        self, batch: Batch, packed: PackedBatch, advantage: Tensor, trainable: Tensor
    ) -> tuple[ResponseTokens, Tensor]:
        """Facts of a packed batch's response tokens, and the outcomes (int64) of those masked on
        arrival."""
        behaviour, advantage, fresh, sample_index, lag = (
            of_batch[packed.tokens].to(self.model.device)
            for of_batch in (batch.behaviour, advantage, batch.mask, batch.sample_index, batch.lag)
        )
        trained = trainable.to(sample_index.device)[sample_index]
        facts = ResponseTokens(
            behaviour,
            advantage,
            lag,
            sample_index,
            fresh & trained,
            batch.share.to(sample_index.device),
            batch.turn[packed.tokens].to(sample_index.device),
            None if batch.leaves is None else batch.leaves[packed.tokens].to(sample_index.device),
            own=None if batch.own is None else batch.own[packed.tokens].to(sample_index.device),
        )
        masked = torch.where(batch.truncated[packed.tokens].to(fresh.device), TRUNCATED, STALE)
        masked = torch.where(batch.errors[packed.tokens].to(fresh.device), ERROR, masked)
        return facts, torch.where(fresh, MEDIAN, masked)

    def _predict(self, packed: PackedBatch, routed: RoutedTokens | None = None) -> LogitFigures:
        """Log-probability of each response token, and the entropy of its distribution where that is
        needed; float32 [tokens], with a gradient where the loss has one. `routed` gets what routers
        of experts did."""
        wanted: Entropy = "known" if self._loss.needs_entropy else "no"
        if self._loss.learns_entropy:
            wanted = "learned"
        return figures(self.model, packed, self._temperature, wanted, routed)

    def _measures(self, packed: PackedBatch) -> list[Tensor]:
        return [each for each in self._predict(packed) if each is not None]

    def _backward(
        self,
        facts: ResponseTokens,
        tokens: Tokens,
        corrected: Folded,
        added: KlAdded,
        balance: Tensor | None,
    ) -> Tensor:
        """Add the gradient of these tokens' losses; returns the outcomes (int64) of those that
        arrived. `balance` is the auxiliary loss of each, for experts."""
        loss = self._loss.of(facts, tokens, corrected, added, balance)
        total = loss.total
        if total is None and self.rank.size > 1:  # other ranks wait for this backward pass
            total = tokens.current.sum() * 0.0
        if total is not None:
            total.backward()  # type: ignore[no-untyped-call]
        self._sums = self._sums.merge(loss.sums)
        return loss.outcome

    def _proximal(
        self,
        packed: PackedBatch,
        current: Tensor,
        facts: ResponseTokens,
        scores: Tensor | None,
    ) -> tuple[Tensor | None, int]:
        """Log-probabilities under the proximal policy, float32 [tokens], or None where that is the
        behaviour policy; and the number of arrived tokens whose own version's are unknown, which
        get the current ones."""
        match self._staleness.proximal:
            case "behaviour":
                return None, 0
            case "recompute":
                return proximal.recompute(current), 0
            case "loglinear":
                return proximal.loglinear(facts.behaviour, current, facts.lag), 0
            case "ema":
                assert scores is not None
                return scores[packed.tokens].to(current.device), 0
            case "boundary" | "snapshot":
                assert scores is not None
                known = scores[packed.tokens].to(current.device)
                logprobs = proximal.scored(known, current, facts.lag)
                scores[packed.tokens] = logprobs.cpu()
                unknown = torch.isnan(logprobs)
                return (
                    torch.where(unknown, current.detach(), logprobs),
                    int((unknown & facts.arrived).sum()),
                )

    def step(self) -> dict[str, float]:
        """Close the step: update once, or once for each minibatch and pass, and make the next
        version. Where no token was trained, or the gradient is not finite, the weights do not
        change, but the version advances. Returns `Sums.metrics` over all updates; the means over
        them of `grad_norm` (before clipping), `lr` as used, `lr_scale` (the factor by effective
        sample size, see `vcpo.learning_rate_scale`) and `skipped` (1 where the weights did not
        change); and `updates`, the number that changed them.
        """
        self.rank.let_go(self.model)
        if self.proximal_logprobs:
            self.proximal_logprobs.close(self.version)
        with blamed("minibatch rule", self._train.minibatch_by):
            parts = minibatches(self._held, self._minibatches, self._train.minibatches)
        parts *= self._train.passes
        made = [self._made(part, index, len(parts)) for index, part in enumerate(parts)] or [
            self._update(0)
        ]
        self.counts = [
            count
            for held in self._held
            for count in token_counts(
                held.samples,
                held.batch.sample_index,
                self.rank.joined(held.outcome),
                self._loss.reasons,
            )
        ]
        sums, self._whole, self._held = self._whole, Sums(), []
        self.version += 1
        if self.kl_terms.stepped(self.version, self.model):
            self.optimizer.state.clear()  # its moments belong to the old loss (ProRL)
        if self.average:
            self.average.update()
        learned = {"supervised_loss": fmean(update.supervised for update in made)}
        return (
            dict(sums.metrics())
            | (sums.routed.replay_metrics() if self._train.router_replay else {})
            | (learned if self._supervised else {})
            | {
                "grad_norm": fmean(update.norm for update in made),
                "lr": fmean(update.rate for update in made),
                "lr_scale": fmean(update.scale for update in made),
                "skipped": fmean(not update.taken for update in made),
                "updates": float(sum(update.taken for update in made)),
            }
        )

    def _update(self, number: int) -> Updated:
        """Divide the gradient by the divisor of its tokens, add that of examples, clip it, and
        change the weights."""
        sums, supervised = self.rank.summed(self._sums), 0.0
        scale = learning_rate_scale(sums.by_lag.total.ess, self._train.ess_base)
        rate = learning_rate(self._train, self.version) * scale
        norm = 0.0
        if sums.trained:
            changed = self._changed
            torch._foreach_div_(
                [master.grad for master in changed if master.grad is not None], sums.divisor
            )
            if self._supervised:
                supervised = self._supervised.backward(self.model, self.version, number, self.rank)
            total = torch.nn.utils.clip_grad_norm_(changed, self._train.grad_clip)
            norm = float(self.rank.whole(total))
        taken = sums.trained > 0 and math.isfinite(norm)
        if taken:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            with blamed("optimizer", self._train.optimizer):
                self.optimizer.step()
            self.master_weights.round()
            self.balance.updated(sums.routed)
        self.optimizer.zero_grad(set_to_none=True)
        self._whole, self._sums = self._whole.merge(sums), Sums()
        return Updated(norm, rate, scale, taken, supervised)


def known_behaviour(behaviour: Tensor, current: Tensor, own: Tensor | None) -> Tensor:
    """The behaviour log-probabilities, float32 [tokens]. Foreign tokens whose own are not known are
    scored here, once, under the policy that trains them first (`current`): their ratio is 1 then,
    and the gradient is the plain one.

    >>> known_behaviour(torch.tensor([-1.0, math.nan]), torch.tensor([-2.0, -3.0]),
    ...                 torch.tensor([True, False])).tolist()
    [-1.0, -3.0]
    """
    if own is None:
        return behaviour
    return torch.where(torch.isnan(behaviour) & ~own, current.detach(), behaviour)


def _arrived(batch: Batch, trainable: Tensor) -> Tensor:
    """The response tokens of a micro-batch that may enter the loss, bool [tokens]; `trainable` is
    bool [samples]."""
    return batch.mask & trainable.to(batch.mask.device)[batch.sample_index]
