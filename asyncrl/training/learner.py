"""One optimizer step from many micro-batches. Invariant: the gradient is the same however the rollouts are split.

The loss of a step is the sum over its trained tokens divided by their number. Each micro-batch adds the gradient of its own sum, and
the division happens once, when the step is closed and the number is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.config.schema import Staleness, Train
from asyncrl.messages import MicroBatch, TokenCount
from asyncrl.training.linear import accelerate
from asyncrl.training.rows import Rectangle, log_probabilities, pack
from asyncrl.training.schedule import learning_rate
from staleness import advantages, correction, objectives
from staleness.diagnostics import Divergence, divergence
from staleness.ratios import log_ratio


class Fate(IntEnum):
    """What became of a response token; the name in lower case is the reason it was discarded for."""

    TRAINED = 0
    STALE = 1
    NONFINITE = 2
    ICEPOP = 3


class Batch(NamedTuple):
    """A micro-batch as tensors: its rectangles, and for each response token its behaviour log-probability (float32), whether it may
    enter the loss (bool), its advantage (float32) and the place of its sample in the batch (int64)."""

    rectangles: list[Rectangle]
    behaviour: Tensor
    mask: Tensor
    advantage: Tensor
    owner: Tensor


class Sums(NamedTuple):
    """What a step adds up, over its trained tokens unless said: `arrived` tokens were not masked on arrival."""

    trained: int = 0
    arrived: int = 0
    clipped: int = 0
    loss: float = 0.0
    divergence: Divergence = Divergence()

    def merge(self, other: Sums) -> Sums:
        """The sums of both."""
        return Sums(
            self.trained + other.trained,
            self.arrived + other.arrived,
            self.clipped + other.clipped,
            self.loss + other.loss,
            self.divergence.merge(other.divergence),
        )


class Learner:
    """A model and its optimizer (AdamW). `version` counts the steps taken, from that of the checkpoint or 0.

    `temperature` is that of sampling. Dropout stays off: current and behaviour log-probabilities must be of the same policy.
    """

    def __init__(self, model: PreTrainedModel, train: Train, staleness: Staleness, temperature: float, version: int = 0) -> None:
        model.train(False)
        accelerate(model)
        self.model = model
        self.version = version
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=train.lr, betas=(train.beta1, train.beta2), weight_decay=train.weight_decay, foreach=True
        )
        self._train, self._staleness, self._temperature = train, staleness, temperature
        self._sums = Sums()

    def accumulate(self, batch: MicroBatch, buffers: Sequence[memoryview | bytes]) -> list[TokenCount]:
        """Add the gradient of a micro-batch; `buffers` are the three of `MicroBatch`. Returns, for each sample, what became of its response
        tokens: trained, or discarded as `stale` (masked on arrival), `nonfinite` (a log-probability that is no number) or `icepop` (the
        ratio left its band). Raises ValueError where batch and buffers do not fit each other, or the batch is of another step."""
        if batch.step != self.version:
            raise ValueError(f"a micro-batch of step {batch.step} came while step {self.version} was being accumulated")
        if not batch.samples:
            return []
        tensors = read(batch, buffers)
        fates = torch.empty_like(tensors.owner)
        for rectangle in tensors.rectangles:
            fates[rectangle.tokens] = self._add(tensors, rectangle).cpu()
        table = torch.zeros(len(batch.samples), len(Fate), dtype=torch.int64)
        table.index_put_((tensors.owner, fates), torch.ones_like(fates), accumulate=True)
        return [
            TokenCount(sample.rollout, row[Fate.TRAINED], {fate.name.lower(): row[fate] for fate in list(Fate)[1:] if row[fate]})
            for sample, row in zip(batch.samples, table.tolist(), strict=True)
        ]

    def _add(self, batch: Batch, rectangle: Rectangle) -> Tensor:
        """Add the gradient of the sum of a rectangle's losses; returns the Fate of each of its response tokens, int64 [tokens]."""
        behaviour, arrived, advantage, owner = (
            of_batch[rectangle.tokens].to(self.model.device) for of_batch in (batch.behaviour, batch.mask, batch.advantage, batch.owner)
        )
        fate = torch.full_like(owner, Fate.STALE)
        if not arrived.any():
            return fate
        log, finite = log_ratio(log_probabilities(self.model, rectangle, self._temperature), behaviour)
        usable = arrived & finite
        corrected = self._correct(log, usable)
        objective = objectives.clipped(log, advantage, lo=self._train.clip_lo, hi=self._train.clip_hi)
        loss = torch.where(corrected.kept, corrected.weight * objective.loss, 0.0).sum()
        if corrected.kept.any():
            loss.backward()  # type: ignore[no-untyped-call]
        fate[arrived] = Fate.NONFINITE
        fate[usable] = Fate.ICEPOP
        fate[corrected.kept] = Fate.TRAINED
        self._sums = self._sums.merge(
            Sums(
                int(corrected.kept.sum()),
                int(arrived.sum()),
                int((objective.clipped & corrected.kept).sum()),
                float(loss.detach()),
                divergence(log, usable, owner),
            )
        )
        return fate

    def _correct(self, log: Tensor, mask: Tensor) -> correction.Correction:
        match self._staleness.correction:
            case "icepop":
                return correction.icepop(log, mask, lo=self._staleness.lo, hi=self._staleness.hi)
            case "none":
                return correction.none(log, mask)

    def step(self) -> dict[str, float]:
        """Close the step: divide the gradient by the trained tokens, clip it, update, and make the next version.

        Where no token was trained, or the gradient is not finite, the weights stay as they are, and the version advances all the same.
        Returns `loss`, `clip_fraction` (of trained tokens), `kept_fraction` (trained of the tokens not stale), `log_ratio_abs`,
        `ratio_mean`, `k3`, `ess` (see `Divergence.means`), `grad_norm` (before clipping), `lr`, `trained_tokens` and `skipped` (1 where
        the weights stayed).
        """
        sums = self._sums
        rate = learning_rate(self._train, self.version)
        norm = 0.0
        if sums.trained:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            torch._foreach_div_(gradients, float(sums.trained))
            norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._train.grad_clip))
        updated = sums.trained > 0 and math.isfinite(norm)
        if updated:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._sums = Sums()
        self.version += 1
        return {
            "loss": sums.loss / max(1, sums.trained),
            "clip_fraction": sums.clipped / max(1, sums.trained),
            "kept_fraction": sums.trained / max(1, sums.arrived),
            **sums.divergence.means(),
            "grad_norm": norm,
            "lr": rate,
            "trained_tokens": float(sums.trained),
            "skipped": float(not updated),
        }


def read(batch: MicroBatch, buffers: Sequence[memoryview | bytes]) -> Batch:
    """The tensors of a micro-batch with at least one sample. Raises ValueError where the buffers do not fit it."""
    if len(buffers) != 3:
        raise ValueError(f"a micro-batch comes with 3 buffers, not {len(buffers)}")
    prompts, responses = [s.prompt_tokens for s in batch.samples], [s.response_tokens for s in batch.samples]
    ids, behaviour, mask = (np.frombuffer(b, dtype) for b, dtype in zip(buffers, ("<i4", "<f4", "u1"), strict=True))
    if not len(behaviour) == len(mask) == sum(responses):
        raise ValueError(
            f"samples of {sum(responses)} response tokens came with {len(behaviour)} log-probabilities and {len(mask)} of mask"
        )
    owner = torch.repeat_interleave(torch.tensor(responses))
    advantage = advantages.grpo([s.reward for s in batch.samples], [s.group for s in batch.samples], batch.rewards)
    return Batch(
        pack(ids, prompts, responses),
        torch.from_numpy(behaviour.copy()),
        torch.from_numpy(mask.copy()) != 0,
        advantage[owner],
        owner,
    )
