"""Images in a model's passes: what its tower makes of them, and their positions (M-RoPE).
Invariant: engine and trainer compute both by these functions, with the model's own code.

Ids that stand for a part of an image are negative here (`ModelImages.marked`), so a sampled
placeholder is a token like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.tasks.images.vision_model import ImagePatches


class Seen(NamedTuple):
    """Parts of images as a tower sees them: `vectors`, [parts, size], are the inputs of the first
    layer at their places; `deep`, each [parts, size], are added there to the outputs of the
    first layers (DeepStack, arXiv 2406.04334), in families that have them.

    >>> Seen(torch.ones(3, 2), (torch.ones(3, 2),)).at(torch.tensor([0, 2])).vectors.shape
    torch.Size([2, 2])
    """

    vectors: Tensor
    deep: tuple[Tensor, ...] = ()

    def at(self, parts: Tensor) -> Seen:
        """The same of these parts, int64 [places]."""
        return Seen(self.vectors[parts], tuple(each[parts] for each in self.deep))

    def total(self) -> Tensor:
        """The sum of all numbers."""
        return torch.stack([each.sum() for each in (self.vectors, *self.deep)]).sum()


def seen_images(model: Any, images: Sequence[ImagePatches]) -> Seen:
    """Parts of these images, one image after the other; with gradient where the tower learns."""
    device = model.device
    patches = torch.from_numpy(np.concatenate([one.patches for one in images])).to(device)
    grids = torch.tensor([one.grid for one in images], device=device)
    learns = any(parameter.requires_grad for parameter in model.model.visual.parameters())
    with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
        found = model.model.get_image_features(patches, grids, return_dict=True)
        deep = getattr(found, "deepstack_features", None) or ()
        return Seen(torch.cat(list(found.pooler_output)), tuple(torch.cat(list(d)) for d in deep))


Sees = Callable[[], tuple[Seen | None, Tensor | None]]
"""Gives what a pass sees of images, None for nothing, and what is added to its inputs."""


@contextmanager
def showing(model: Any, ids: Tensor, sees: Sees) -> Iterator[None]:
    """Have the model's pass over one sequence in the block see images in place of negative ids
    (int64 [tokens]); its own `input_ids` have any others there. `sees` is called inside of that
    pass."""

    def see(_: object, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        seen, added = sees()
        inputs: Tensor = given["inputs_embeds"]
        if added is not None:
            inputs = inputs + added
        if seen is None:
            return args, {**given, "inputs_embeds": inputs}
        places = (ids < 0).to(inputs.device)[None]
        inputs = inputs.masked_scatter(places[..., None], seen.vectors.to(inputs.dtype))
        deep = {"visual_pos_masks": places, "deepstack_visual_embeds": list(seen.deep)}
        return args, {**given, "inputs_embeds": inputs, **(deep if seen.deep else {})}

    hook = model.model.language_model.register_forward_pre_hook(see, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def rope_positions(model: Any, ids: Tensor, grids: Sequence[tuple[int, int, int]]) -> Tensor:
    """Positions of a sequence of ids [tokens] with images of these grids, int64 [3, tokens]: of
    time, row and column. Those of the tokens that follow count on from the largest, plus 1."""
    positions: Tensor
    positions, _ = model.model.get_rope_index(
        ids[None], (ids < 0).int()[None], image_grid_thw=torch.tensor(grids, device=ids.device)
    )
    return positions[:, 0]
