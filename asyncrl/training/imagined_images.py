"""The longest prompts with images, for the memory of a trainer before there are any. Invariant: all
of such a prompt is one image, but its ends.

The tower takes a pass over several patches for each token, and keeps what its gradient needs if it
learns. What it takes hardly depends on how many images the patches are of.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from asyncrl.training.packing import PackedBatch
from asyncrl.training.shown_images import Grid, black_image, shown_images

ENDS = 2
"""Tokens of a prompt that are text: one before its image, one behind it."""


class ImaginedImages:
    """An image for each of so many prompts, in tokens [prompts, longest], of which the first
    `prompt` are the prompt's; equal prompts have equal images."""

    def __init__(self, model: PreTrainedModel, ids: NDArray[np.int32], prompt: int) -> None:
        self._model = model
        rows = isqrt(max(0, prompt - ENDS))
        columns = (prompt - ENDS) // rows if rows else 0
        self._patches = black_image(model, rows, columns)
        self.marked = ids.copy()
        """The ids, in which parts of images are told apart."""
        self._images = dict[int, tuple[str, Grid]]()
        known = dict[bytes, int]()
        for row, own in enumerate(ids[:, :prompt]) if rows else ():
            first = known.setdefault(own.tobytes(), row) * rows * columns
            self.marked[row, 1 : 1 + rows * columns] = -1 - first - np.arange(rows * columns)
            self._images[first] = ("", self._patches.grid)

    def shown(self, packed: PackedBatch) -> PackedBatch:
        """A packed batch of the marked ids, with its images."""
        shown = shown_images(
            self._model,
            packed.ids,
            packed.tree.paths(),
            self._images,
            lambda _: self._patches,
        )
        return packed._replace(shown=shown)
