"""Images of a micro-batch in its packed batches. Invariant: an image is whole in a sequence, and
two places are one only where their images are equal.

Each part of an image has an id of its own (`ModelImages.marked`), so the prefix tree shares equal
images, and keeps apart prompts that differ in an image alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.messages import Sample
from asyncrl.tasks.images.sight import image_vectors, rope_positions, with_vectors
from asyncrl.tasks.images.vision_model import ImagePatches, ImageRows, ModelImages
from asyncrl.training.adapters import freeze


def freeze_tower(model: PreTrainedModel) -> None:
    """Keep the weights of a model's tower for images, with what leads from it to the text."""
    if hasattr(model.base_model, "visual"):
        freeze(model, f"{model.base_model_prefix}.visual")


class ShownImages(NamedTuple):
    """The images of a packed batch. `positions`: of each of its places for the model, int64 [3,
    places]. `images`: of its micro-batch, each by its first row, in the order of rows."""

    positions: Tensor
    images: Mapping[int, ImagePatches]

    def inputs(self, model: PreTrainedModel, ids: Tensor) -> Tensor:
        """The inputs of the model's first layer for the places' `ids`, [places, size]; with the
        gradient of the tower for images, if it learns. Each image is seen once."""
        rows = (-1 - ids[ids < 0]).numpy()
        first = np.array(list(self.images))
        used, of = np.unique(np.searchsorted(first, rows, "right") - 1, return_inverse=True)
        if not len(used):
            return with_vectors(model, ids.to(model.device), torch.zeros(0, device=model.device))
        shown = [self.images[int(start)] for start in first[used]]
        vectors = image_vectors(model, shown)
        merged = model.config.vision_config.spatial_merge_size**2
        sizes = np.array([len(one.patches) // merged for one in shown])
        local = (np.cumsum(sizes) - sizes)[of] + rows - first[used][of]
        wanted = torch.from_numpy(local).to(model.device)
        return with_vectors(model, ids.to(model.device), vectors[wanted])

    def moved(
        self, places: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], count: int
    ) -> ShownImages:
        """The same images of another packed batch, of `count` places: each pair are places there,
        and here."""
        positions = self.positions.new_zeros((3, count))
        for there, here in places:
            positions[:, there] = self.positions[:, here]
        return self._replace(positions=positions)


class TrainedImages:
    """The images of a run for a trainer, whose `model` gives their positions."""

    def __init__(self, images: ModelImages, model: PreTrainedModel) -> None:
        self._images, self._model = images, model

    def marked(
        self, samples: Sequence[Sample], ids: NDArray[np.int32], images: Mapping[int, Sequence[str]]
    ) -> tuple[NDArray[np.int32], dict[int, ImagePatches]]:
        """The ids of a micro-batch, in which parts of images are told apart, and its images by
        their first rows. `images` are those of each group's prompt. Raises ValueError where they
        are not those of its placeholders, or cannot be read."""
        rows, marked, start = ImageRows(), ids.copy(), 0
        for sample in samples:
            end = start + sample.prompt_tokens + sample.response_tokens
            if sample.images:
                marked[start:end], _ = self._images.numbered(ids[start:end], sample.images, rows)
            elif names := images.get(sample.group):
                marked[start:end] = self._images.marked(
                    ids[start:end], sample.prompt_tokens, names, rows
                )
            start = end
        return marked, {first: self._images.of(name) for name, first in rows.first.items()}

    def shown(
        self, marked: Tensor, paths: Iterable[NDArray[np.int64]], images: Mapping[int, ImagePatches]
    ) -> ShownImages:
        """The images of a packed batch of marked ids, int64 [places], with the paths of its
        sequences."""
        positions = torch.zeros((3, len(marked)), dtype=torch.long)
        for path in map(torch.from_numpy, paths):
            ids = marked[path]
            starts = (-1 - ids[ids < 0]).tolist()
            grids = [images[row].grid for row in starts if row in images]
            if grids:
                positions[:, path] = rope_positions(self._model, ids, grids)
            else:
                positions[:, path] = torch.arange(len(ids))
        return ShownImages(positions, images)
