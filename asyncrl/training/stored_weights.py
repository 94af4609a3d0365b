"""Weights in safetensors files, without torch: where each lies, and if its numbers are finite.
Invariant: memory is bounded, whatever the size of a weight.

A number that is NaN or infinite has only ones in its exponent, so its bytes tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import safe_open

from asyncrl.escape import escaped
from asyncrl.files import open_regular

PIECE = 2**20
"""Bytes that are looked at together."""


class _NumberBits(NamedTuple):
    """A type of numbers: an unsigned type of as many bytes, the bits of the exponent, which are all
    ones in what is not finite, and those of the fraction, which are 0 in what is infinite."""

    unsigned: type[np.unsignedinteger]
    exponent: int
    fraction: int


_FORMATS = {
    "F64": _NumberBits(np.uint64, 0x7FF0_0000_0000_0000, 0x000F_FFFF_FFFF_FFFF),
    "F32": _NumberBits(np.uint32, 0x7F80_0000, 0x007F_FFFF),
    "BF16": _NumberBits(np.uint16, 0x7F80, 0x007F),
    "F16": _NumberBits(np.uint16, 0x7C00, 0x03FF),
}
_PACKED = re.compile(
    r"(^|\.)(qweight|qzeros|weight_packed|weight_scale(_2)?|absmax)$|_scale_inv$|_proj_blocks$"
)
"""Names of quantized weights, and of their scales: GPTQ's, AWQ's, compressed-tensors', those of
bitsandbytes, DeepSeek's and gpt-oss's."""


class StoredWeight(NamedTuple):
    """A weight in a file: its type and shape (`form`), and its bytes from `start` on."""

    file: Path
    name: str
    form: tuple[str, tuple[int, ...]]
    start: int
    size: int

    def bytes_at(self, at: int) -> bytes:
        """A few bytes of it."""
        with open_regular(self.file) as file:
            file.seek(self.start + at)
            return file.read(min(4096, self.size - at))

    @property
    def quantized(self) -> bool:
        """True for a weight of few bits, and for its scales. Read as they are, its numbers would be
        those of another model, because scales have names that no class of transformers has."""
        return self.form[0].startswith(("F4", "F6_", "F8")) or bool(_PACKED.search(self.name))

    @property
    def must_be_finite(self) -> bool:
        """True for floating-point numbers, unless they are a mask, which may be infinite."""
        return self.form[0] in _FORMATS and "mask" not in self.name.rpartition(".")[2]

    def not_finite(self, at: int, most: int) -> str:
        """The first number that is not finite among `most` bytes from `at` on, both multiples of 8,
        in words; empty if there is none. Raises OSError."""
        kind = _FORMATS[self.form[0]]
        width = np.dtype(kind.unsigned).itemsize
        with open_regular(self.file) as file:
            file.seek(self.start + at)
            for begin in range(at, min(at + most, self.size), PIECE):
                read = file.read(min(PIECE, at + most - begin, self.size - begin))
                bits = np.frombuffer(read[: len(read) // width * width], kind.unsigned)
                ones = bits & kind.unsigned(kind.exponent)
                if bits.size and ones.max() == kind.exponent:
                    first = int((ones == kind.exponent).argmax())
                    infinite = kind.fraction != kind.exponent and not bits[first] & kind.fraction
                    index = begin // width + first
                    return f"number {index} of it is {'infinite' if infinite else 'NaN'}"
        return ""


def stored_weights(path: Path) -> Iterator[StoredWeight]:
    """The weights in the header of a file. Raises OSError and SafetensorError."""
    with safe_open(path, framework="numpy"), open_regular(path) as file:  # the first checks it
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            form = entry["dtype"], tuple(entry["shape"])
            yield StoredWeight(path, name, form, 8 + length + start, end - start)


def quantized_in(weight: StoredWeight) -> str:
    """Words about weights of which one is quantized."""
    return (
        f"{escaped(weight.name, 100)} in {escaped(weight.file.name, 100)} is quantized, though "
        "config.json has no quantization_config"
    )


def said_of(weight: StoredWeight, words: str) -> str:
    """Words about a weight of which a number is not finite."""
    return f"of {escaped(weight.name, 100)} in {escaped(weight.file.name, 100)}, {words}"
