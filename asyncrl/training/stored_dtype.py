"""The type of a model's weights in its files, and the type in which a trained model is saved.
Invariant: a model directory that a run leaves never takes more bytes a weight than the one that it
was given. No torch here.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of weights, by their names in safetensors."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def stored_dtype(directory: Path) -> str:
    """The one type of all weights of a model directory; empty if there are several, another one, or
    none, or if a header cannot be read."""
    found = set[str]()
    try:
        for path in directory.glob("model*.safetensors"):
            with safe_open(path, "numpy") as file:
                found |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return ""
    return NAMES.get(found.pop(), "") if len(found) == 1 else ""


def saved_dtype(trained: str, directory: Path) -> str:
    """The type in which the model that was `trained` in a type is saved: that of the directory
    which it came from, if that has fewer bytes a weight.

    >>> saved_dtype("float32", Path("/nowhere"))
    'float32'
    """
    stored = stored_dtype(directory)
    return stored if stored and _BYTES[stored] < _BYTES[trained] else trained
