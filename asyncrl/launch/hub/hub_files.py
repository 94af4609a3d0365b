"""The files of a model on a hub that a run uses. Pure. Invariant: none of them is a pickle, or
code, or in another directory, whatever the hub lists."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePath

from asyncrl.escape import escaped, quoted
from asyncrl.files import JSON_BYTES

WEIGHTS = ".safetensors"
INDEX = "model.safetensors.index.json"
NEEDED = ("config.json", "tokenizer.json")
_SMALL = (".json", ".jinja", ".model")
"""Ends of the names of files that are not weights."""
_TEXTS = frozenset({"merges.txt", "vocab.txt"})
"""Files of tokenizers with another end."""
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_OF_ADAPTERS = re.compile(r"adapter_(config\.json|model.*\.safetensors)")


def wanted(listed: Mapping[str, int], *, weights: bool = True) -> dict[str, int]:
    """The files of a model that a run uses, of those that a hub lists, with their bytes; `weights`
    among them or not.

    >>> listed = dict.fromkeys(["model.safetensors", "consolidated.safetensors", "config.json",
    ...     "pytorch_model.bin", "pytorch_model.bin.index.json", "modeling_x.py",
    ...     "onnx/config.json", "chat_template.jinja", "README.md"], 1)
    >>> list(wanted(listed)), list(wanted(listed, weights=False))
    (['model.safetensors', 'config.json', 'chat_template.jinja'], \
['config.json', 'chat_template.jinja'])
    """
    return {
        name: size
        for name, size in listed.items()
        if ("/" not in name and _is_small(name)) or (weights and name in _weights(listed))
    }


def misfit(listed: Mapping[str, int], *, weights: bool = True) -> str:
    """The reason why what a hub lists is no model that can be trained, in words; empty if it may be
    one.

    >>> misfit({"config.json": 1, "tokenizer.json": 1, "model.bin": 1})
    'has no weights in safetensors, only pickles (model.bin), which are not read'
    >>> misfit({"../../x": 1})
    "names a file outside of its directory ('../../x')"
    >>> misfit({"config.json": 1, "tokenizer.json": 1, "model.safetensors": 1})
    ''
    """
    for outside in filter(_leads_out, listed):
        return f"names a file outside of its directory ({quoted(outside, 100)})"
    if "adapter_config.json" in listed and "config.json" not in listed:
        return (
            "is an adapter (adapter_config.json), and no model: merge it with its base into one "
            "directory"
        )
    for name in NEEDED:
        if name not in listed:
            return f"has no {name}"
    if weights and not _weights(listed):
        if pickle := min((name for name in listed if name.endswith(_PICKLED)), default=""):
            return (
                f"has no weights in safetensors, only pickles ({escaped(pickle, 60)}), which are "
                "not read"
            )
        return "has no weights in safetensors"
    for name, size in wanted(listed, weights=False).items():
        if size > JSON_BYTES:
            return f"has a {name} of {size:,} bytes, more than the {JSON_BYTES:,} that are read"
    return ""


def incomplete(there: Collection[str], shards: Collection[str], *, weights: bool = True) -> str:
    """The first file that a directory of a hub's cache lacks, of which no list is known; empty if
    it has what a model needs. `shards` are those that its index names.

    >>> incomplete(["config.json", "tokenizer.json", "model.safetensors"], [])
    ''
    >>> incomplete(["config.json", "tokenizer.json", INDEX, "model-1.safetensors"],
    ...     ["model-1.safetensors", "model-2.safetensors"])
    'model-2.safetensors'
    """
    needed = [*NEEDED, *(shards if weights else ())]
    if missing := next((name for name in needed if name not in there), ""):
        return missing
    if weights and not any(name.endswith(WEIGHTS) for name in there):
        return f"model{WEIGHTS}"
    return ""


def _is_small(name: str) -> bool:
    if _OF_ADAPTERS.fullmatch(name) or (name.endswith(".index.json") and name != INDEX):
        return False  # which names files that are not read
    return name.endswith(_SMALL) or name in _TEXTS


def _weights(listed: Collection[str]) -> list[str]:
    """The files of weights: those that transformers reads, where there are any (Mistral's have all
    of them twice)."""
    beside = [
        name
        for name in listed
        if "/" not in name and name.endswith(WEIGHTS) and not _OF_ADAPTERS.fullmatch(name)
    ]
    return [name for name in beside if name.startswith("model")] or beside


def _leads_out(name: str) -> bool:
    parts = PurePath(name).parts
    return not name.isprintable() or "\\" in name or not parts or parts[0] == "/" or ".." in parts
