"""An exponential moving average of the weights. Invariant: it is the mean of all versions so far,
each with `decay` times the weight of the next; the initial one is a version like any other. So it
is not biased to the start of the run, as an average that starts there is (PPO-EWMA, arXiv
2110.00641, section 3.2, divides by the sum of the weights too). It is float32 whatever the model's
type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.adapters import learning
from asyncrl.training.frozen_policy import FrozenPolicy
from asyncrl.training.master_weights import MasterWeights
from asyncrl.training.packing import PackedBatch
from asyncrl.training.ranks.by_all import scored_by_all
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.stored_state import StoredRows, whole_of

_TOTAL, _WEIGHTS = "total", "weights/"


class WeightAverage:
    """The average of a model's weights, of `decay` in (0, 1), and `policy`, the model with these
    weights. Several ranks have shards of it, as of the model, and no policy: the average stands in
    for the model's own weights where it scores."""

    def __init__(
        self, model: PreTrainedModel, weights: MasterWeights, decay: float, rank: Rank = ALONE
    ) -> None:
        self.policy = FrozenPolicy.like(model) if rank.size == 1 else None
        self._masters, self._decay = dict(weights.named()), decay
        self._model, self._rank = model, rank
        own = dict(learning(self.policy.model)) if self.policy else {}
        self._average: dict[str, Tensor] = {  # float32 weights are the policy's own
            name: own[name].detach().copy_(master.detach())
            if name in own and own[name].dtype == torch.float32
            else master.detach().float().clone()
            for name, master in self._masters.items()
        }
        self._total = 1.0
        self._place = rank.stand_in(model) if self.policy is None else None

    def weights(self) -> Mapping[str, Tensor]:
        """The average of the parameters that learn, by name, as this rank has it; of one rank in
        the type of the model."""
        return dict(learning(self.policy.model)) if self.policy else self._average

    def scores(self, batches: Sequence[PackedBatch], temperature: float) -> list[Tensor]:
        """Log-probability of each response token of each packed batch with the average, float32
        [tokens], without gradient and in host memory; all ranks call this alike."""
        if self.policy:
            return self.policy.scores(batches, temperature)
        assert self._place is not None
        with self._place.of(self._average) as model:
            return scored_by_all(self._rank, model, batches, temperature)

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights of one more version."""
        before, self._total = self._total, self._decay * self._total + 1.0
        for name, average in self._average.items():
            average.mul_(self._decay * before / self._total)
            average.add_(self._masters[name], alpha=1.0 / self._total)
        self._round()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the average, for a checkpoint; of several ranks the shards."""
        for name, average in self._average.items():
            yield _WEIGHTS + name, average
        yield _TOTAL, torch.tensor(self._total, dtype=torch.float64)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor | StoredRows]) -> None:
        """Load the result of `tensors`. Raises ValueError, and changes nothing, where it is of
        another model or incomplete."""
        shapes = {_WEIGHTS + name: average.shape for name, average in self._average.items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes | {
            _TOTAL: torch.Size([])
        }:
            raise ValueError("the average of the weights is missing, or of another model")
        for name, average in self._average.items():
            average.copy_(self._rank.sharded(tensors[_WEIGHTS + name], like=average))
        self._total = float(whole_of(tensors[_TOTAL]))
        self._round()

    def _round(self) -> None:
        if self.policy is None:
            return
        for name, parameter in learning(self.policy.model):
            if parameter.dtype != torch.float32:
                parameter.copy_(self._average[name])
