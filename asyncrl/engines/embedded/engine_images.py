"""Images in the embedded engine. Invariant: an image is an atom: its parts are computed together,
from the prompt's first token on, and never continued from the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.engines.protocol import Request
from asyncrl.tasks.images.sight import rope_positions
from asyncrl.tasks.images.vision_model import ImagePatches, ImageRows, ModelImages

NAMED = 2**16
"""Images that an engine tells apart by the names that it saw before."""


class SeenText(NamedTuple):
    """A text with images for a model: `ids`, int64 [tokens], negative where there are parts of
    `shown` images; `positions`, int64 [3, tokens], and the `offset` of those of later tokens."""

    ids: Tensor
    shown: Sequence[ImagePatches]
    positions: Tensor
    offset: int


class EngineImages:
    """The images of a run, for all lanes of an engine."""

    def __init__(self, images: ModelImages) -> None:
        self._images, self._rows = images, ImageRows(NAMED)

    def marked(self, request: Request) -> Request:
        """The request with ids that tell the parts of its images apart. Raises ValueError where
        an image cannot be read, or the ids are not its."""
        prompt = len(request.ids) - request.prefix_tokens
        ids, shown = self._images.told_apart(request.ids, prompt, request.images, self._rows)
        return msgspec.structs.replace(request, ids=ids, images=tuple(shown))

    def seen(self, model: PreTrainedModel, ids: Tensor, images: Sequence[str]) -> SeenText:
        """A text (int64 [tokens]) with all of its images."""
        shown = [self._images.of(name) for name in images]
        positions = rope_positions(model, ids, [one.grid for one in shown])
        return SeenText(ids, shown, positions, int(positions.max()) + 1 - len(ids))
