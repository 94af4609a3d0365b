"""The weights of past versions. Invariant: scoring with them changes neither the model that learns
nor its gradients.

They stand in for the model's own (`asyncrl.training.ranks.stand_in`). Each snapshot takes the
memory of the weights that learn once, of several ranks that of a rank's shards; the base of
adapters is the learner's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.adapters import learning
from asyncrl.training.packing import PackedBatch
from asyncrl.training.ranks.by_all import scored_by_all
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.stored_state import StoredRows


class Snapshots:
    """The weights of the newest `most` versions before the learner's own (`most` >= 0), each a
    copy."""

    def __init__(self, model: PreTrainedModel, most: int, rank: Rank = ALONE) -> None:
        self.most = most
        self._held: dict[int, dict[str, Tensor]] = {}
        self._model, self._rank, self._place = model, rank, rank.stand_in(model)

    @property
    def versions(self) -> list[int]:
        """Versions that can score, oldest first."""
        return sorted(self._held)

    def keep(self, version: int) -> None:
        """Copy the weights of `version`, the learner's own, and release versions that become too
        old."""
        if self.most:
            self._rank.let_go(self._model)
            self._held[version] = {name: p.detach().clone() for name, p in learning(self._model)}
        self.release(version - self.most)

    def release(self, version: int) -> None:
        """Release `version` and older ones."""
        self._held = {held: weights for held, weights in self._held.items() if held > version}

    def scores(
        self, version: int, batches: Sequence[PackedBatch], temperature: float
    ) -> list[Tensor]:
        """Log-probability of each response token of each packed batch under `version`, float32
        [tokens], without gradient and in host memory; all ranks call this alike. Raises KeyError
        for a version that is not held."""
        with self._place.of(self._held[version]) as model:
            return scored_by_all(self._rank, model, batches, temperature)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(`<version>/<parameter>`, tensor) of all weights, in the type that the model computes
        in, for a checkpoint; of several ranks the shards."""
        dtype = self._rank.computes(self._model)
        for version, weights in self._held.items():
            for name, weight in weights.items():
                yield f"{version}/{name}", weight.to(dtype)

    def restore(self, tensors: Mapping[str, Tensor | StoredRows]) -> None:
        """Load the result of `tensors`, of its newest `most` versions. Raises ValueError where it
        is of another model."""
        expected = dict(learning(self._model))
        restored: dict[int, dict[str, Tensor | StoredRows]] = {}
        for key, tensor in tensors.items():
            version, _, name = key.partition("/")
            if name not in expected or tensor.shape != expected[name].shape:
                raise ValueError(f"a weight of an earlier version is of another model ({name})")
            restored.setdefault(int(version), {})[name] = tensor
        if any(weights.keys() != expected.keys() for weights in restored.values()):
            raise ValueError("the weights of an earlier version are not complete")
        self._held = {
            version: {
                name: self._rank.sharded(tensor, like=expected[name]).to(expected[name].dtype)
                for name, tensor in restored[version].items()
            }
            for version in sorted(restored)[max(0, len(restored) - self.most) :]
        }
