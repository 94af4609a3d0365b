"""The weights of past versions. Invariant: scoring with them changes neither the model that learns
nor its gradients.

A separate model scores: it has the learner's architecture and no memory of its own for weights, and
is pointed at the requested snapshot. So the learner's weights may be read at the same time (by a
publication), and accumulated gradients do not change. Each snapshot takes the memory of the weights
that learn once; the base of adapters is the learner's own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.training.adapters import learning
from asyncrl.training.forward import log_probabilities
from asyncrl.training.packing import PackedBatch


class Snapshots:
    """The weights of the newest `most` versions before the learner's own (`most` >= 0), each a
    copy."""

    def __init__(self, model: PreTrainedModel, most: int) -> None:
        self.most = most
        self._held: dict[int, dict[str, Tensor]] = {}
        stand_ins = {
            id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()
        }
        self._scorer: PreTrainedModel = copy.deepcopy(model, stand_ins)

    @property
    def versions(self) -> list[int]:
        """Versions that can score, oldest first."""
        return sorted(self._held)

    def keep(self, version: int, model: PreTrainedModel) -> None:
        """Copy the weights of `version`, the learner's own, and release versions that become too
        old."""
        if self.most:
            self._held[version] = {name: p.detach().clone() for name, p in learning(model)}
        self.release(version - self.most)

    def release(self, version: int) -> None:
        """Release `version` and older ones."""
        self._held = {held: weights for held, weights in self._held.items() if held > version}

    def score(self, version: int, packed: PackedBatch, temperature: float) -> Tensor:
        """Log-probability of each response token under `version`, float32 [tokens],
        without gradient. Raises KeyError for a version that is not held."""
        weights = self._held[version]
        for name, parameter in learning(self._scorer):
            parameter.data = weights[name]
        with torch.no_grad():
            return log_probabilities(self._scorer, packed, temperature)

    def tensors(self) -> dict[str, Tensor]:
        """All weights for a checkpoint, as `<version>/<parameter>`."""
        return {
            f"{version}/{name}": weight
            for version, weights in self._held.items()
            for name, weight in weights.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the result of `tensors`, of its newest `most` versions. Raises ValueError where it
        is of another model."""
        expected = dict(learning(self._scorer))
        restored: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            version, _, name = key.partition("/")
            if name not in expected or tensor.shape != expected[name].shape:
                raise ValueError(f"a weight of an earlier version is of another model ({name})")
            # a copy: mapped from the file it lies at any address, and kernels round differently
            # there
            restored.setdefault(int(version), {})[name] = tensor.clone().to(expected[name])
        if any(weights.keys() != expected.keys() for weights in restored.values()):
            raise ValueError("the weights of an earlier version are not complete")
        self._held = {
            version: restored[version]
            for version in sorted(restored)[max(0, len(restored) - self.most) :]
        }
