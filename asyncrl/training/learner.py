"""One optimizer step from many micro-batches. Invariant: the gradient is the same however the
rollouts are split.

The loss of a step is a sum over its tokens, divided by what `train.loss_mean` says. Each
micro-batch adds the gradient of its own sum, and the division happens once, when the step is closed
and the divisor is known. What is said of a whole rollout is computed where all of it is: a rollout
is never split over packed batches.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.config.losses import advantage_of, clips_nothing
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.ipc.messages import MicroBatch, ScoreProximal, TokenCount
from asyncrl.training.batch import Batch, read
from asyncrl.training.forward import entropies, response_logits, shares
from asyncrl.training.gradients import sample_advantages
from asyncrl.training.kl_terms import KlTerms, Served
from asyncrl.training.linear import accelerate
from asyncrl.training.loss import MEDIAN, STALE, Loss, ResponseTokens
from asyncrl.training.master_weights import MasterWeights
from asyncrl.training.optimizer import adamw
from asyncrl.training.packing import PackedBatch
from asyncrl.training.proximal_logprobs import ProximalLogprobs
from asyncrl.training.schedule import learning_rate
from asyncrl.training.sums import Sums
from asyncrl.training.weight_average import WeightAverage
from staleness import proximal
from staleness.vcpo import learning_rate_scale

logger = logging.getLogger(__name__)
NOTHING_SERVED: Served = MappingProxyType({})


class Learner:
    """A model and its optimizer (AdamW), which changes `master_weights`. `version` counts the steps
    taken, from that of the checkpoint or 0.

    `temperature` is that of sampling, `budget` the tokens that a response may have. Dropout stays
    off: current and behaviour log-probabilities must be of the same policy. `past` is what is known
    of earlier versions, where the proximal policy is one of them. `kl_terms` are what policies that
    do not learn add.
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
    ) -> None:
        model.train(False)
        accelerate(model)
        self.model = model
        self.version = version
        self.master_weights = MasterWeights(model)
        self.optimizer = adamw(self._changed, train)
        most = {"boundary": max(1, staleness.max_lag), "snapshot": staleness.max_lag}.get(
            staleness.proximal
        )
        self.proximal_logprobs = (
            None if most is None else ProximalLogprobs(model, temperature, most)
        )
        self.kl_terms = kl_terms or KlTerms()
        self.average = WeightAverage(model, self.master_weights, train.ema) if train.ema else None
        self._train, self._staleness, self._temperature = train, staleness, temperature
        self._loss = Loss(train, staleness, budget)
        self._advantage = advantage_of(train)
        if clips_nothing(train, staleness):
            logger.warning(
                "proximal is recompute: the ratio of the objective is 1, and clipping does nothing"
            )
        self._sums = Sums()

    @property
    def _changed(self) -> list[torch.nn.Parameter]:
        """Weights that the optimizer changes."""
        return [master for _, master in self.master_weights.named()]

    def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview | bytes]) -> None:
        """Score and keep what the message has, while the weights are those of its step. Raises
        ValueError where the proximal policy is not `boundary`, the buffer does not fit the message,
        or the message is of another step."""
        if self._staleness.proximal != "boundary" or self.proximal_logprobs is None:
            raise ValueError(
                f"texts to be scored came, and the proximal policy is {self._staleness.proximal}"
            )
        if message.step != self.version:
            raise ValueError(
                f"texts to be scored at the end of step {message.step} came while step "
                f"{self.version} was being accumulated"
            )
        self.proximal_logprobs.score_proximal(message, buffers, self.version)

    def accumulate(
        self,
        batch: MicroBatch,
        buffers: Sequence[memoryview | bytes],
        served: Served = NOTHING_SERVED,
    ) -> list[TokenCount]:
        """Add the gradient of a micro-batch; `buffers` are the three of `MicroBatch`, `served` the
        log-probabilities of its sampled tokens by servers (`KlTerms.scores`). Returns, for
        each sample, what became of its response tokens: trained, or discarded as `stale` (masked on
        arrival), `median` (its rollout is the one that others are compared with), `nonfinite` (a
        log-probability that is no number), or by the kind of the correction that left it out.
        Raises ValueError where batch and buffers do not fit each other, or the batch is of another
        step."""
        if batch.step != self.version:
            raise ValueError(
                f"a micro-batch of step {batch.step} came while step {self.version} was being "
                "accumulated"
            )
        if not batch.samples:
            return []
        tensors = read(batch, buffers, shared=shares(self.model))
        tensors = tensors._replace(scores=self.kl_terms.scores(tensors, served))
        batch = self.kl_terms.rewarded(batch, tensors)
        advantage, trainable = sample_advantages(
            batch, tensors, self.model, self._advantage, self._temperature
        )
        scores = self.proximal_logprobs.known(batch.samples) if self.proximal_logprobs else None
        fates = torch.empty_like(tensors.sample_index)
        for packed in tensors.packed:
            fates[packed.tokens] = self._add(tensors, packed, advantage, trainable, scores).cpu()
        if (
            self.proximal_logprobs
            and scores is not None
            and self._train.replay_groups
            and self._staleness.proximal == "boundary"
        ):
            self.proximal_logprobs.remember(batch.samples, scores)
        table = torch.zeros(len(batch.samples), len(self._loss.reasons), dtype=torch.int64)
        table.index_put_((tensors.sample_index, fates), torch.ones_like(fates), accumulate=True)
        return [
            TokenCount(
                sample.rollout,
                row[0],
                {
                    reason: count
                    for reason, count in zip(self._loss.reasons[1:], row[1:], strict=True)
                    if count
                },
            )
            for sample, row in zip(batch.samples, table.tolist(), strict=True)
        ]

    def _add(
        self,
        batch: Batch,
        packed: PackedBatch,
        advantage: Tensor,
        trainable: Tensor,
        scores: Tensor | None,
    ) -> Tensor:
        """Add the gradient of the sum of a packed batch's losses; returns the fate of each of its
        response tokens, int64 [tokens]. `advantage` (float32) and `trainable` (bool) are [samples],
        `scores` float32 [tokens of the batch]."""
        behaviour, fresh, sample_index, lag = (
            of_batch[packed.tokens].to(self.model.device)
            for of_batch in (batch.behaviour, batch.mask, batch.sample_index, batch.lag)
        )
        trained = trainable.to(sample_index.device)[sample_index]
        arrived = fresh & trained
        fate = torch.where(fresh & ~trained, MEDIAN, STALE)
        if not arrived.any():
            return fate
        logits = response_logits(self.model, packed, self._temperature)
        current = -F.cross_entropy(logits, packed.targets.to(logits.device), reduction="none")
        entropy = entropies(logits) if self._loss.learns_entropy else None
        prox, unknown = self._proximal(batch, packed, current, behaviour, lag, arrived, scores)
        facts = ResponseTokens(
            behaviour, advantage.to(sample_index.device)[sample_index], lag, sample_index, arrived
        )
        added = self.kl_terms.added(batch, packed.tokens, current)
        found = self._loss.of(facts, current, prox, added, entropy)
        if found.total is not None:
            found.total.backward()  # type: ignore[no-untyped-call]
        self._sums = self._sums.merge(found.sums).merge(Sums(proximal_unknown=unknown))
        return torch.where(arrived, found.fate, fate)

    def _proximal(
        self,
        batch: Batch,
        packed: PackedBatch,
        current: Tensor,
        behaviour: Tensor,
        lag: Tensor,
        arrived: Tensor,
        scores: Tensor | None,
    ) -> tuple[Tensor | None, int]:
        """Log-probabilities under the proximal policy, float32 [tokens], or None where that is the
        behaviour policy; and of how many tokens that arrived their own version's are not known, so
        that they have the current ones."""
        match self._staleness.proximal:
            case "behaviour":
                return None, 0
            case "recompute":
                return proximal.recompute(current), 0
            case "loglinear":
                return proximal.loglinear(behaviour, current, lag), 0
            case "ema":
                assert self.average is not None
                return self.average.policy.score(packed, self._temperature), 0
            case "boundary" | "snapshot":
                assert self.proximal_logprobs is not None and scores is not None
                found = self.proximal_logprobs.completed(
                    scores[packed.tokens], packed, batch.version[packed.tokens], arrived.cpu()
                )
                found = proximal.scored(found.to(current.device), current, lag)
                scores[packed.tokens] = found.cpu()
                unknown = torch.isnan(found)
                return torch.where(unknown, current.detach(), found), int((unknown & arrived).sum())

    def step(self) -> dict[str, float]:
        """Close the step: divide the gradient by the step's divisor, clip it, update, and make the
        next version.

        Where no token was trained, or the gradient is not finite, the weights stay as they are, and
        the version advances all the same. Returns what `Sums.metrics` does, and `grad_norm` (before
        clipping), `lr` as it was used, `lr_scale` (what the effective sample size leaves of it, see
        `vcpo.learning_rate_scale`) and `skipped` (1 where the weights stayed).
        """
        sums = self._sums
        scale = learning_rate_scale(sums.by_lag.total.ess, self._train.ess_base)
        rate = learning_rate(self._train, self.version) * scale
        norm = 0.0
        if sums.trained:
            changed = self._changed
            torch._foreach_div_(
                [master.grad for master in changed if master.grad is not None], sums.divisor
            )
            norm = float(torch.nn.utils.clip_grad_norm_(changed, self._train.grad_clip))
        updated = sums.trained > 0 and math.isfinite(norm)
        if self.proximal_logprobs:
            self.proximal_logprobs.close(self.version)
        if updated:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.master_weights.round()
        self.optimizer.zero_grad(set_to_none=True)
        self._sums = Sums()
        self.version += 1
        self.kl_terms.stepped(self.version, self.model)
        if self.average:
            self.average.update()
        return sums.metrics() | {
            "grad_norm": norm,
            "lr": rate,
            "lr_scale": scale,
            "skipped": float(not updated),
        }
