"""Images of a micro-batch in its packed batches. Invariant: an image is whole in a sequence, and
two places are one only where their images are equal.

Each part of an image has an id of its own (`ModelImages.marked`), so the prefix tree shares equal
images, and keeps apart prompts that differ in an image alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from asyncrl.messages import Sample
from asyncrl.tasks.images.sight import Seen, rope_positions, seen_images, showing
from asyncrl.tasks.images.vision_model import ImagePatches, ImageRows, ModelImages
from asyncrl.training.adapters import freeze, has_tower, tower_of


def freeze_tower(model: PreTrainedModel) -> None:
    """Keep the weights of a model's tower for images, with what leads from it to the text."""
    if has_tower(model):
        freeze(model, tower_of(model))


Grid = tuple[int, int, int]
"""The frames (1), rows and columns of an image's patches."""


class ShownImages(NamedTuple):
    """The images of a packed batch. `positions`: of each of its places for the model, int64 [3,
    places]. `images`: of its micro-batch, the hash and grid of each by its first row, in the order
    of rows. `read` gives an image's patches by its hash, when a pass wants them: micro-batches that
    are held until the end of a step keep none."""

    positions: Tensor
    images: Mapping[int, tuple[str, Grid]]
    read: Callable[[str], ImagePatches]

    def seen(self, model: PreTrainedModel, ids: Tensor) -> Seen:
        """Parts of images as the tower sees them, for the places' `ids` of which some stand for
        such; with the gradient of the tower, if it learns. Each image is seen once."""
        rows = (-1 - ids[ids < 0]).numpy()
        first = np.array(list(self.images))
        used, of = np.unique(np.searchsorted(first, rows, "right") - 1, return_inverse=True)
        shown = [self.read(self.images[int(start)][0]) for start in first[used]]
        seen = seen_images(model, shown)
        merged = model.config.vision_config.spatial_merge_size**2
        sizes = np.array([len(one.patches) // merged for one in shown])
        local = (np.cumsum(sizes) - sizes)[of] + rows - first[used][of]
        wanted = torch.from_numpy(local).to(model.device)
        return seen.at(wanted)

    def moved(
        self, places: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], count: int
    ) -> ShownImages:
        """The same images of another packed batch, of `count` places: each pair are places there,
        and here."""
        positions = self.positions.new_zeros((3, count))
        for there, here in places:
            positions[:, there] = self.positions[:, here]
        return self._replace(positions=positions)


@contextmanager
def seeing(model: PreTrainedModel, ids: Tensor, shown: ShownImages | None) -> Iterator[None]:
    """Have a model see the images of a packed batch in its pass in the block, in place of negative
    ids (int64 [places]). The tower runs inside of that pass, where ranks gather its weights. A rank
    whose batch shows none sees a small image, which counts nothing: others wait for its tower."""
    divided = isinstance(model, FSDPModule) and has_tower(model)
    if shown is None and not divided:
        yield
        return
    found = shown if shown is not None and bool((ids < 0).any()) else None

    def sees() -> tuple[Seen | None, Tensor | None]:
        if found is not None:
            return found.seen(model, ids), None
        if not divided:
            return None, None
        return None, 0.0 * seen_images(model, [black_image(model)]).total()

    with showing(model, ids, sees):
        yield


def black_image(model: PreTrainedModel, rows: int = 1, columns: int = 1) -> ImagePatches:
    """A black image of so many rows and columns of tokens."""
    vision = model.config.vision_config
    merged = vision.spatial_merge_size
    numbers = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    patches = np.zeros((merged**2 * rows * columns, numbers), np.float32)
    return ImagePatches(patches, (1, merged * rows, merged * columns))


class TrainedImages:
    """The images of a run for a trainer, whose `model` gives their positions."""

    def read_bytes(self) -> int:
        """Bytes of images that this process has read."""
        return self._images.read_bytes()

    def __init__(self, images: ModelImages, model: PreTrainedModel) -> None:
        self._images, self._model = images, model

    def marked(
        self, samples: Sequence[Sample], ids: NDArray[np.int32], images: Mapping[int, Sequence[str]]
    ) -> tuple[NDArray[np.int32], dict[int, tuple[str, Grid]]]:
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
        grids = {name: self._images.of(name).grid for name in rows.first}
        return marked, {first: (name, grids[name]) for name, first in rows.first.items()}

    def shown(
        self,
        marked: Tensor,
        paths: Iterable[NDArray[np.int64]],
        images: Mapping[int, tuple[str, Grid]],
    ) -> ShownImages:
        """The images of a packed batch of marked ids, int64 [places], with the paths of its
        sequences."""
        return shown_images(self._model, marked, paths, images, self._images.of)


def shown_images(
    model: PreTrainedModel,
    marked: Tensor,
    paths: Iterable[NDArray[np.int64]],
    images: Mapping[int, tuple[str, Grid]],
    read: Callable[[str], ImagePatches],
) -> ShownImages:
    """The images of a packed batch of marked ids, int64 [places], with the paths of its
    sequences: `images` and `read` are those of `ShownImages`."""
    positions = torch.zeros((3, len(marked)), dtype=torch.long)
    for path in map(torch.from_numpy, paths):
        ids = marked[path]
        starts = (-1 - ids[ids < 0]).tolist()
        grids = [images[row][1] for row in starts if row in images]
        if grids:
            positions[:, path] = rope_positions(model, ids, grids)
        else:
            positions[:, path] = torch.arange(len(ids))
    return ShownImages(positions, images, read)
