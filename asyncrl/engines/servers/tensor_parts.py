"""Sizes of a model that do not divide among the devices of one server. Pure.

A server's own assertion ends it minutes after its start, without the setting's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from asyncrl.words import whole

HEADS, WIDTH, OF_EXPERT = "num_attention_heads", "intermediate_size", "moe_intermediate_size"
"""Entries of config.json that every tensor-parallel rank has an equal part of: the last instead of
the second, if there are both, where few layers or none have the second."""
KEY_HEADS = "num_key_value_heads"
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
EXPERT_PARALLEL = ("--ep-size", "--expert-parallel-size", "--ep")
"""Arguments of SGLang that divide experts among ranks."""


def indivisible(config: Mapping[str, Any], ranks: int, arguments: Sequence[str] = ()) -> str:
    """The first entry of config.json that does not divide among so many ranks, as the end of a
    sentence that begins with the model. Empty if all do, or it has none.

    >>> indivisible({"num_attention_heads": 14}, 4)
    'has num_attention_heads = 14, which does not divide by tensor_parallel = 4'
    >>> indivisible({"num_experts": 6}, 4, ["--ep-size", "4"])
    'has num_experts = 6, which does not divide by --ep-size 4'
    >>> indivisible({"num_attention_heads": 16, "num_key_value_heads": 2}, 4)
    ''
    """
    text = config.get("text_config")
    own = text if isinstance(text, dict) else config
    option, parts = _expert_parallel(arguments)
    each = max(1, ranks // parts) if parts else ranks
    width = OF_EXPERT if _size(own, OF_EXPERT) else WIDTH
    for name, divisor in ((HEADS, ranks), (width, each if width == OF_EXPERT else ranks)):
        if (size := _size(own, name)) % divisor:
            return f"has {name} = {size}, which does not divide by tensor_parallel = {ranks}"
    heads = _size(own, KEY_HEADS)
    if heads and heads % ranks and ranks % heads:
        return f"has {KEY_HEADS} = {heads}, of which {ranks} ranks can have no equal part"
    for name in EXPERTS if parts else ():
        if (count := _size(own, name)) and count % parts:
            return f"has {name} = {count}, which does not divide by {option} {parts}"
    return ""


def _size(config: Mapping[str, Any], name: str) -> int:
    """A number of config.json; 0 where it has none."""
    found = config.get(name)
    return found if isinstance(found, int) and found > 0 else 0


def _expert_parallel(arguments: Sequence[str]) -> tuple[str, int]:
    """The option that divides experts, and into how many parts; 0 where there is none."""
    words = [part for word in arguments for part in word.split("=", 1)]
    for option, value in pairwise(words):
        if option in EXPERT_PARALLEL:
            return option, whole(value) or 0
    return "", 0
