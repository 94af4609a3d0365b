"""Numbers of a model's weights, before anything starts: none may be NaN or infinite, because
training cannot repair that, and none quantized, because it would be read as another. Invariant: of
a model of any size at most MOST bytes are read, and of each weight some, spread over it; a note
says so where that is not all.

The trainer looks at all of them when it reads them (`load_model`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from asyncrl.config import ConfigError
from asyncrl.config.derived import Row
from asyncrl.config.model_names import OUTLINE
from asyncrl.config.paths import is_file
from asyncrl.training.stored_weights import (
    PIECE,
    StoredWeight,
    quantized_in,
    said_of,
    stored_weights,
)
from asyncrl.words import size

MOST = 2**31
"""Bytes of a directory's weights that are read, at most."""
READ_S = 20.0
"""Seconds after which no more is read, for a slow disk."""


def check_numbers(key: str, path: Path) -> list[Row]:
    """Look at the weights of the model directory that the setting `key` names. Returns a note if
    not all were looked at. Raises ConfigError. Files that cannot be read are left to their
    readers."""
    if is_file(path / OUTLINE):
        return []
    stored = list(_weights(path))
    if packed := next((weight for weight in stored if weight.quantized), None):
        raise ConfigError(
            f"{key} is {str(path)!r}, and {quantized_in(packed)}; give the model's directory in "
            "bfloat16 or float32."
        )
    weights = [weight for weight in stored if weight.must_be_finite]
    total, looked = sum(weight.size for weight in weights), 0
    end = time.monotonic() + READ_S
    for weight, at, most in _parts(weights, total):
        if looked and time.monotonic() > end:
            break
        try:
            words = weight.not_finite(at, most)
        except OSError:
            continue
        if words:
            raise ConfigError(
                f"{key} is {str(path)!r}, and its weights are not all finite: "
                f"{said_of(weight, words)}; download or convert the model again, or give a "
                "checkpoint from before."
            )
        looked += min(most, weight.size - at)
    if looked == total:
        return []
    text = f"of {size(total)} of weights {size(looked)} were checked, and are finite: the"
    return [Row("note", key, f"{text} trainer looks at all when it reads them")]


def _weights(path: Path) -> Iterator[StoredWeight]:
    """The weights in the files that can be read."""
    for file in sorted(path.glob("*.safetensors")):
        try:
            yield from stored_weights(file)
        except (OSError, SafetensorError):
            continue


def _parts(weights: list[StoredWeight], total: int) -> Iterator[tuple[StoredWeight, int, int]]:
    """The parts to look at: weight, first byte and number of bytes. All of what is small enough; of
    more, in each weight pieces at equal distances, the first pieces of all weights first."""
    if total <= MOST:
        yield from ((weight, 0, weight.size) for weight in weights)
        return
    piece = max(8, min(PIECE, MOST // (2 * len(weights))) // 8 * 8)
    counts = [max(1, weight.size * (MOST // 2) // total // piece) for weight in weights]
    for turn in range(max(counts)):
        for weight, count in zip(weights, counts, strict=True):
            if turn < count:
                yield weight, weight.size * turn // count // 8 * 8, piece
