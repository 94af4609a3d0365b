"""Weights of several models as one linear combination of them, without torch's modules: from
safetensors files to safetensors files. Invariant: memory is bounded, whatever the size of a weight.

Files are divided as those of the first model are, and each weight keeps the type that it has there.
Sums are in float64 and rounded once. What is no floating-point number must be equal in all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError

from asyncrl.escape import escaped
from asyncrl.files import open_regular, whole_file
from asyncrl.training.stored_weights import StoredWeight, stored_weights

NUMBERS = 2**20
"""Numbers of each model that are in memory at a time."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_INDEX = "model.safetensors.index.json"


class MergeError(Exception):
    """Models that cannot be merged; the message is a sentence without its full stop."""


class Parent(NamedTuple):
    """One model of a merge: its directory, and the factor of its weights."""

    directory: Path
    factor: float


class Layout(NamedTuple):
    """The weights of the result: those of the first model by file, and of each part by name."""

    files: Mapping[str, Sequence[StoredWeight]]
    parts: Sequence[tuple[float, Mapping[str, StoredWeight]]]

    @property
    def size(self) -> int:
        """Bytes of all weights of the result."""
        return sum(weight.size for weights in self.files.values() for weight in weights)


def layout(parts: Sequence[Parent]) -> Layout:
    """Compare the weights of the parts, by their headers. Raises MergeError unless all have the
    same names and shapes, and types that can be added."""
    files = {file.name: list(_stored(file)) for file in _weight_files(parts[0].directory)}
    own = {weight.name: weight for weights in files.values() for weight in weights}
    weighed = list[tuple[float, Mapping[str, StoredWeight]]]()
    for part in parts:
        its = {
            weight.name: weight
            for file in _weight_files(part.directory)
            for weight in _stored(file)
        }
        _refuse_misfit(parts[0].directory, own, part.directory, its)
        weighed.append((part.factor, its))
    return Layout(files, weighed)


def write_merged(
    merged: Layout, folder: Path, say: Callable[[int], object] = lambda done: None
) -> list[float]:
    """Write the files of the combination into `folder`. `say` is called with the number of bytes
    that are written so far, after each piece. Returns the distance of each part from the first,
    over the length of the first: the root of the sum of squares over all weights. Unrelated models
    are about 1.4 apart, descendants of one model a few hundredths. Raises MergeError for numbers
    that become NaN or infinite, and OSError."""
    done, squares = 0, torch.zeros(1 + len(merged.parts), dtype=torch.float64)
    for name, weights in merged.files.items():
        with whole_file(folder / name) as file:
            file.write(_header(weights))
            for weight in weights:
                for piece in _pieces(weight, merged.parts, squares):
                    file.write(piece)
                    done += len(piece)
                    say(done)
    if len(merged.files) > 1:
        index = {
            "metadata": {"total_size": merged.size},
            "weight_map": {
                weight.name: name for name, weights in merged.files.items() for weight in weights
            },
        }
        with whole_file(folder / _INDEX) as file:
            file.write(json.dumps(index, indent=2).encode())
    length, *apart = squares.sqrt().tolist()
    return [each / length if length else 0.0 for each in apart]


def _weight_files(directory: Path) -> list[Path]:
    """The files that transformers would read: `model.safetensors`, or its parts. A directory may
    have others, such as `consolidated.safetensors`, with the same numbers under other names."""
    whole = directory / "model.safetensors"
    if whole.is_file():
        return [whole]
    return sorted(directory.glob("model-*.safetensors")) or sorted(directory.glob("*.safetensors"))


def _stored(file: Path) -> Iterator[StoredWeight]:
    try:
        yield from stored_weights(file)
    except (OSError, SafetensorError) as error:
        text = escaped(str(error), 100)
        raise MergeError(f"{file} cannot be read ({text}); download or save it again") from None


def _refuse_misfit(
    first: Path,
    own: Mapping[str, StoredWeight],
    directory: Path,
    its: Mapping[str, StoredWeight],
) -> None:
    for a, b, has, lacks in ((own, its, first, directory), (its, own, directory, first)):
        if missing := next((name for name in a if name not in b), None):
            name = escaped(missing, 100)
            raise MergeError(f"{has} has the weight {name}, and {lacks} does not; {_ALIKE}")
    for name, weight in own.items():
        (kind, shape), (its_kind, its_shape) = weight.form, its[name].form
        if shape != its_shape:
            raise MergeError(
                f"{escaped(name, 100)} is {list(shape)} in {first}, and {list(its_shape)} in "
                f"{directory}; {_ALIKE}"
            )
        for path, one, other in ((first, kind, its_kind), (directory, its_kind, kind)):
            if one not in _DTYPES and (one != other or one.startswith("F")):
                raise MergeError(
                    f"{escaped(name, 100)} in {path} is of the type {one}, which is not merged; "
                    "give the models in float32, bfloat16 or float16"
                )


_ALIKE = "give models of one architecture and size"


def _header(weights: Sequence[StoredWeight]) -> bytes:
    """The start of a safetensors file: the length of a JSON object, and that object."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for weight in weights:
        kind, shape = weight.form
        entries[weight.name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": [at, at + weight.size],
        }
        at += weight.size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    return len(text).to_bytes(8, "little") + text


def _pieces(
    weight: StoredWeight,
    parts: Sequence[tuple[float, Mapping[str, StoredWeight]]],
    squares: torch.Tensor,
) -> Iterator[bytes]:
    """The bytes of a weight of the combination. Adds to `squares` those of the first part's
    numbers, and of each part's differences from it."""
    of_parts = [(factor, its[weight.name]) for factor, its in parts]
    with ExitStack() as stack:
        opened = [stack.enter_context(open_regular(its.file)) for _, its in of_parts]
        for file, (_, its) in zip(opened, of_parts, strict=True):
            file.seek(its.start)
        if weight.form[0] in _DTYPES:
            yield from _sums(weight, of_parts, opened, squares)
        else:
            yield from _equal(weight, of_parts, opened)


def _sums(
    weight: StoredWeight,
    parts: Sequence[tuple[float, StoredWeight]],
    files: Sequence[BinaryIO],
    squares: torch.Tensor,
) -> Iterator[bytes]:
    dtype = _DTYPES[weight.form[0]]
    left = weight.size // dtype.itemsize
    while left:
        count = min(left, NUMBERS)
        total = torch.zeros(count, dtype=torch.float64)
        first = None
        for number, ((factor, its), file) in enumerate(zip(parts, files, strict=True)):
            kind = _DTYPES[its.form[0]]
            data = bytearray(file.read(count * kind.itemsize))
            numbers = torch.frombuffer(data, dtype=kind).to(torch.float64)
            total += factor * numbers
            first = numbers if first is None else first
            squares[1 + number] += (numbers - first).square().sum()
        if first is not None:
            squares[0] += first.square().sum()
        rounded = total.to(dtype)
        if weight.must_be_finite and not bool(rounded.isfinite().all()):
            raise MergeError(
                f"{escaped(weight.name, 100)} would have numbers that are NaN or infinite; see "
                "that the models have finite weights, and that the factors are moderate"
            )
        yield rounded.view(torch.uint8).numpy().tobytes()
        left -= count


def _equal(
    weight: StoredWeight,
    parts: Sequence[tuple[float, StoredWeight]],
    files: Sequence[BinaryIO],
) -> Iterator[bytes]:
    left = weight.size
    while left:
        read = [file.read(min(left, NUMBERS)) for file in files]
        if any(data != read[0] for data in read):
            other = next(
                its.file.parent
                for (_, its), data in zip(parts, read, strict=True)
                if data != read[0]
            )
            raise MergeError(
                f"{escaped(weight.name, 100)} holds no floating-point numbers, and differs in "
                f"{other}; give models that agree in it"
            )
        yield read[0]
        left -= len(read[0])
