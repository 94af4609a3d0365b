"""Images in the embedded engine. Invariant: an image is an atom: its parts are computed together,
from the prompt's first token on, and never continued from the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.engines.protocol import Request
from asyncrl.tasks.images.sight import image_vectors, rope_positions, with_vectors
from asyncrl.tasks.images.vision_model import ImageRows, ModelImages


class SeenText(NamedTuple):
    """A text with images for the first layer of a model: `inputs` [tokens, size], `positions`
    int64 [3, tokens], and the `offset` of the positions of tokens that follow."""

    inputs: Tensor
    positions: Tensor
    offset: int


class EngineImages:
    """The images of a run, for all lanes of an engine."""

    def __init__(self, images: ModelImages) -> None:
        self._images, self._rows = images, ImageRows()

    def marked(self, request: Request) -> Request:
        """The request with ids that tell the parts of its images apart. Raises ValueError where
        an image cannot be read, or the ids are not its."""
        prompt = len(request.ids) - request.prefix_tokens
        if (request.ids[:prompt] < 0).any():
            ids, shown = self._images.numbered(request.ids, request.images, self._rows)
            return msgspec.structs.replace(request, ids=ids, images=tuple(shown))
        ids = self._images.marked(request.ids, prompt, request.images, self._rows)
        return msgspec.structs.replace(request, ids=ids)

    def seen(self, model: PreTrainedModel, ids: Tensor, images: Sequence[str]) -> SeenText:
        """A text (int64 [tokens]) with all of its images, as the model's present weights see it."""
        shown = [self._images.of(name) for name in images]
        inputs = with_vectors(model, ids, image_vectors(model, shown))
        positions = rope_positions(model, ids, [one.grid for one in shown])
        return SeenText(inputs, positions, int(positions.max()) + 1 - len(ids))
