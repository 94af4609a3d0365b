"""The type of a model's weights in its files, and the type in which a trained model is saved.
Invariant: a model directory that a run leaves never takes more bytes a weight than the one that it
was given. No torch here.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError, safe_open

NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
"""Types of weights, by their names in safetensors."""
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def stored_dtypes(directory: Path) -> set[str]:
    """The types of the weights of a model directory, by their names in safetensors; none if a
    header cannot be read."""
    found = set[str]()
    try:
        for path in directory.glob("model*.safetensors"):
            with safe_open(path, "numpy") as file:
                found |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return set()
    return found


def stored_dtype(directory: Path) -> str:
    """The one type of all weights of a model directory; empty if there are several, another one, or
    none, or if a header cannot be read."""
    found = stored_dtypes(directory)
    return NAMES.get(found.pop(), "") if len(found) == 1 else ""


def conversion(stored: Collection[str], trained: str) -> str:
    """The conversion of weights from types of safetensors to that in which they are trained, in
    words.

    >>> conversion(["BF16"], "float32"), conversion(["F32"], "bfloat16")
    ('stored in bfloat16, converted without loss', 'stored in float32, and rounded to bfloat16')
    >>> conversion(["F32", "BF16"], "bfloat16"), conversion(["F16"], "bfloat16")
    ('stored in bfloat16 and float32, and some rounded to bfloat16', \
'stored in float16, and rounded to bfloat16')
    >>> conversion(["F32"], "float32"), conversion([], "float32")
    ('stored in float32', 'stored in a type that cannot be read')
    """
    names = sorted(NAMES.get(one, one) for one in stored)
    if not names:
        return "stored in a type that cannot be read"
    words = f"stored in {' and '.join(names)}"
    others = [name for name in names if name != trained and name in _BYTES]
    if not others:
        return words
    rounded = [name for name in others if not _holds(trained, name)]
    if not rounded:
        return f"{words}, converted without loss"
    return f"{words}, and {'some ' * (len(rounded) < len(names))}rounded to {trained}"


def _holds(wide: str, narrow: str) -> bool:
    """True if a type has each number of another."""
    return wide == "float32" and narrow in ("bfloat16", "float16")


def saved_dtype(trained: str, directory: Path) -> str:
    """The type in which the model that was `trained` in a type is saved: that of the directory
    which it came from, if that has fewer bytes a weight.

    >>> saved_dtype("float32", Path("/nowhere"))
    'float32'
    """
    stored = stored_dtype(directory)
    return stored if stored and _BYTES[stored] < _BYTES[trained] else trained
