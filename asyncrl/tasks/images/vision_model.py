"""Models that read images, by their files: what stands for an image in ids, and its patches.
Invariant: both are the model's own processor's, as `transformers` has it for Pillow.

The processor is that of one image. The processor of conversations is not used: it needs torchvision
for videos. What it does for images is to repeat the placeholder once for each merged patch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.config.errors import installs
from asyncrl.escape import escaped, quoted
from asyncrl.tasks import TaskError
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.images.pixels import Pixels
from asyncrl.tasks.model_json import read_model_json

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
"""Families of models whose images are read."""
PATCH_BYTES = 2**27
"""Bytes of patches that a process keeps beside those it uses."""
LARGEST_ROW = 2**31 - 1
PROCESSOR = "preprocessor_config.json"
"""The file of a model directory that says how its images are scaled and cut."""


class ImagePatches(NamedTuple):
    """An image as a model reads it: its patches, float32 [patches, numbers of a patch], and its
    `grid`: the frames (1), rows and columns of patches.

    >>> ImagePatches(np.zeros((8, 1176), np.float32), (1, 2, 4)).grid
    (1, 2, 4)
    """

    patches: NDArray[np.float32]
    grid: tuple[int, int, int]


class VisionModel:
    """The part of a model's files about images.

    >>> VisionModel(Path("a model of text"))
    Traceback (most recent call last):
    asyncrl.tasks.TaskError: the prompt has an image, and this model reads only text: choose a \
model of Qwen2.5-VL's or Qwen3-VL's family, or take the images out of the data
    """

    def __init__(self, directory: Path) -> None:
        """Raises TaskError for a model whose images cannot be read here."""
        self._directory = directory
        found = read_model_json(directory / "config.json", _Config)
        if found.image_token_id is None or found.vision_config is None:
            raise TaskError(
                "the prompt has an image, and this model reads only text: choose a model of "
                "Qwen2.5-VL's or Qwen3-VL's family, or take the images out of the data"
            )
        if found.model_type not in FAMILIES:
            raise TaskError(
                "the prompt has an image, and models of the family "
                f"{quoted(found.model_type, 40)} read none here yet: choose one of "
                "Qwen2.5-VL's or Qwen3-VL's"
            )
        self._reads = found.model_type, found.image_token_id, found.vision_config
        self.token = found.image_token_id
        """The id that stands for a part of an image."""
        self.merged = found.vision_config.spatial_merge_size**2
        """Patches of a token."""

    def reads_as(self, other: VisionModel) -> bool:
        """True if both take the same ids and patches for an image."""
        return self._reads == other._reads

    def tokens(self, pixels: Pixels) -> int:
        """The number of ids that stand for an image. Raises TaskError for one that the model's
        processor refuses, as a very narrow one."""
        height, width, _ = pixels.shape
        try:
            patches = int(self._processor.get_number_of_image_patches(height, width))
        except ValueError as error:
            raise TaskError(f"the model's processor refuses an image: {error}") from error
        return patches // self.merged

    def expanded(self, ids: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Ids with as many placeholders for each image as it has `tokens`. Raises TaskError where
        the ids have another number of images."""
        places = [at for at, one in enumerate(ids) if one == self.token]
        if len(places) != len(tokens):
            raise TaskError(
                f"the chat template gives {len(places)} places to {len(tokens)} images: it may not "
                "know parts of images, or the text names their token"
            )
        expanded, at = list[int](), 0
        for place, count in zip(places, tokens, strict=True):
            expanded += [*ids[at:place], *([self.token] * count)]
            at = place + 1
        return [*expanded, *ids[at:]]

    def patches(self, pixels: Pixels) -> ImagePatches:
        """An image, scaled and cut as the model reads it."""
        made = self._processor(
            images=[pixels], return_tensors="np", input_data_format="channels_last"
        )
        frames, rows, columns = map(int, made["image_grid_thw"][0])
        return ImagePatches(np.asarray(made["pixel_values"], np.float32), (frames, rows, columns))

    def scaled(self, pixels: Pixels) -> Pixels:
        """An image in the size in which the model reads it: its processor scales it no more."""
        made = self._processor(
            images=[pixels],
            return_tensors="np",
            input_data_format="channels_last",
            do_rescale=False,
            do_normalize=False,
        )
        _, rows, columns = map(int, made["image_grid_thw"][0])
        side, merged = int(self._processor.patch_size), int(self._processor.merge_size)
        blocks = np.asarray(made["pixel_values"]).reshape(
            rows // merged, columns // merged, merged, merged, 3, -1, side, side
        )
        apart = blocks[..., 0, :, :].transpose(0, 2, 5, 1, 3, 6, 4)  # of its equal frames the first
        return apart.reshape(rows * side, columns * side, 3).astype(np.uint8)

    @cached_property
    def _processor(self) -> Any:
        try:
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
                Qwen2VLImageProcessorPil,
            )

            return Qwen2VLImageProcessorPil.from_pretrained(
                str(self._directory), local_files_only=True, trust_remote_code=False
            )
        except ImportError as error:
            raise TaskError(f"images need Pillow: {installs('vision')}") from error
        except Exception as error:  # it may raise anything for a file that it cannot parse
            said = escaped(str(error).strip().partition("\n")[0], 200)
            raise TaskError(f"{self._directory / PROCESSOR} cannot be used: {said}") from error


class ModelImages:
    """The images of a run as a model reads them, by their hashes. A process reads an image once,
    as long as its patches are among the PATCH_BYTES that were used last.

    >>> import tempfile
    >>> from asyncrl.tasks.images.pixels import written_png
    >>> class OnePixelPatches:
    ...     def patches(self, pixels):
    ...         return ImagePatches(pixels.reshape(-1, 3).astype("f4"), (1, *pixels.shape[:2]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = KeptImages(Path(folder))
    ...     name = store.keep(written_png(np.zeros((2, 3, 3), np.uint8)))
    ...     ModelImages(store, OnePixelPatches()).of(name).grid
    (1, 2, 3)
    """

    def __init__(self, store: KeptImages, model: VisionModel) -> None:
        self.store, self.model = store, model
        self._kept = OrderedDict[str, ImagePatches]()
        self._bytes = 0

    def read_bytes(self) -> int:
        """Bytes of images that this process has read."""
        return self.store.read_bytes

    def of(self, name: str) -> ImagePatches:
        """An image's patches. Raises ValueError where its file is not what its name says."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        made = self.model.patches(self.store.pixels(name))
        self._kept[name] = made
        self._bytes += made.patches.nbytes
        while self._bytes > PATCH_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.patches.nbytes
        return made

    def tokens(self, name: str) -> int:
        """The number of ids that stand for an image."""
        _, rows, columns = self.of(name).grid
        return rows * columns // self.model.merged

    def told_apart(
        self, ids: NDArray[np.int32], prompt_tokens: int, images: Sequence[str], rows: ImageRows
    ) -> tuple[NDArray[np.int32], Sequence[str]]:
        """The ids of a request as `marked` or, of an agent's call, as `numbered`; with the images
        in the order of their places. Raises ValueError as these do."""
        if (ids[:prompt_tokens] < 0).any():
            return self.numbered(ids, images, rows)
        return self.marked(ids, prompt_tokens, images, rows), images

    def marked(
        self, ids: NDArray[np.int32], prompt_tokens: int, images: Sequence[str], rows: ImageRows
    ) -> NDArray[np.int32]:
        """Ids in which each part of an image is an id of its own: `-1 - row`. So equal ids are
        equal images, in slots and in prefix trees. Raises ValueError where the prompt has not the
        placeholders of these images, or ends with one."""
        places = np.flatnonzero(ids[:prompt_tokens] == self.model.token)
        parts = [rows.of(name, self.tokens(name)) for name in images]
        every = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        if len(every) != len(places):
            raise ValueError(
                f"a prompt has {len(places)} placeholders, and its {len(images)} images "
                f"{len(every)} tokens"
            )
        if len(places) and places[-1] == prompt_tokens - 1:
            raise ValueError("a prompt ends with an image: its chat template has no text behind it")
        marked = ids.copy()
        marked[places] = -1 - every
        return marked

    def numbered(
        self, ids: NDArray[np.int32], images: Sequence[str], rows: ImageRows
    ) -> tuple[NDArray[np.int32], list[str]]:
        """As `marked`, for ids in which a part of image `n` is `-1 - n` (of agents' calls,
        `image_marks.py`); with the images in the order of their places. Raises ValueError for a
        part of an image without the others, and for a number without an image."""
        marked, shown = ids.copy(), list[str]()
        places = np.flatnonzero(ids < 0)
        at = 0
        while at < len(places):
            start = int(places[at])
            number = -1 - int(ids[start])
            if number >= len(images):
                raise ValueError(f"ids have image {number}, and there are {len(images)}")
            name = images[number]
            parts = rows.of(name, self.tokens(name))
            if not np.array_equal(ids[start : start + len(parts)], np.full(len(parts), ids[start])):
                raise ValueError(f"the image {name[:12]} is not whole in the ids of a call")
            marked[start : start + len(parts)] = -1 - parts
            shown.append(name)
            at += len(parts)
        if len(ids) and ids[-1] < 0:
            raise ValueError("a call ends with an image: its chat template has no text behind it")
        return marked, shown


def run_images(folder: Path, model: Path) -> ModelImages | None:
    """The images in a run's folder as its model reads them; None for a model of text. Raises
    TaskError."""
    if read_model_json(model / "config.json", _Config).model_type not in FAMILIES:
        return None
    return ModelImages(KeptImages(folder), VisionModel(model))


class ImageRows:
    """Rows of the parts of images, counted through all images that were asked for. Of more than
    `most` images (None: any) the first ones are forgotten, and get other rows the next time.

    >>> rows = ImageRows()
    >>> rows.of("a", 2).tolist(), rows.of("b", 1).tolist(), rows.of("a", 2).tolist()
    ([0, 1], [2], [0, 1])
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.first = dict[str, int]()
        """The first row of each image, in the order of rows."""
        self.end = 0
        """The number of rows."""

    def of(self, name: str, tokens: int) -> NDArray[np.int32]:
        """The rows of an image of so many tokens."""
        if name not in self.first:
            if self.end + tokens >= LARGEST_ROW:  # what had the first ones ended long ago
                self.first.clear()
                self.end = 0
            self.first[name] = self.end
            self.end += tokens
            if self._most is not None and len(self.first) > self._most:
                del self.first[next(iter(self.first))]
        return np.arange(self.first[name], self.first[name] + tokens, dtype=np.int32)


class _Vision(msgspec.Struct):
    spatial_merge_size: int = 2
    patch_size: int = 14
    temporal_patch_size: int = 2


class _Config(msgspec.Struct):
    """Parts of a model's config.json."""

    model_type: str = ""
    image_token_id: int | None = None
    vision_config: _Vision | None = None
