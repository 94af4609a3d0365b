"""Images in a model's passes: the vectors that stand for them, and their positions (M-RoPE).
Invariant: engine and trainer compute both by these functions, with the model's own code.

Ids that stand for a part of an image are negative here (`ModelImages.marked`), so a sampled
placeholder is a token like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.tasks.images.vision_model import ImagePatches


def image_vectors(model: Any, images: Sequence[ImagePatches]) -> Tensor:
    """The vectors of the parts of these images, one image after the other, [parts, size]; with
    gradient where the tower learns."""
    device = model.device
    patches = torch.from_numpy(np.concatenate([one.patches for one in images])).to(device)
    grids = torch.tensor([one.grid for one in images], device=device)
    tower = model.model.visual
    learns = any(parameter.requires_grad for parameter in tower.parameters())
    with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
        seen = model.model.get_image_features(patches, grids, return_dict=True).pooler_output
        return torch.cat(list(seen))


def with_vectors(model: Any, ids: Tensor, vectors: Tensor) -> Tensor:
    """The inputs of the first layer, [tokens, size], for ids (int64 [tokens]) of which the negative
    ones stand for parts of images, whose `vectors` are in their order."""
    inputs: Tensor = model.get_input_embeddings()(ids.clamp(min=0))
    return inputs.masked_scatter((ids < 0)[:, None], vectors.to(inputs.dtype))


def rope_positions(model: Any, ids: Tensor, grids: Sequence[tuple[int, int, int]]) -> Tensor:
    """Positions of a sequence of ids [tokens] with images of these grids, int64 [3, tokens]: of
    time, row and column. Those of the tokens that follow count on from the largest, plus 1."""
    positions: Tensor
    positions, _ = model.model.get_rope_index(
        ids[None], (ids < 0).int()[None], image_grid_thw=torch.tensor(grids, device=ids.device)
    )
    return positions[:, 0]
