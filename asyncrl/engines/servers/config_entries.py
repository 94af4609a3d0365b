"""Entries of published config.json files that servers read, and that transformers 5 does not write
by itself. Without them a server computes something else, and the first canary fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BOTH = ("SGLang", "vLLM")
ENTRIES: Mapping[str, tuple[tuple[str, object, tuple[str, ...]], ...]] = {
    "deepseek_v3": (
        ("scoring_func", "sigmoid", BOTH),
        ("topk_method", "noaux_tc", BOTH),
        ("moe_layer_freq", 1, ("SGLang",)),
    ),
    "minimax_m2": (
        ("scoring_func", "sigmoid", ("SGLang",)),
        ("use_routing_bias", True, ("SGLang",)),
        ("use_qk_norm", True, ("SGLang",)),
    ),
}
"""By model type: an entry, the value that transformers computes by, and the servers that need it
(bench/served_families.py)."""
INTERVALS = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
"""Model types of which SGLang takes every n-th layer for full attention, each fourth by default."""


def missing_entry(config: Mapping[str, Any], server: str) -> str:
    """The first entry that config.json lacks for a server of this title, as it must be written
    there. Empty if none is known.

    >>> missing_entry({"model_type": "deepseek_v3", "scoring_func": "sigmoid"}, "vLLM")
    '"topk_method": "noaux_tc"'
    >>> missing_entry({"model_type": "qwen3"}, "vLLM")
    ''
    """
    kind, needed = config.get("model_type"), list[tuple[str, object]]()
    for name, value, servers in ENTRIES.get(str(kind), ()):
        if server in servers:
            needed.append((name, value))
    layers, rope = config.get("layer_types"), config.get("rope_parameters")
    if server == "SGLang" and kind in INTERVALS and isinstance(layers, list):
        every = 1 + layers.index("full_attention") if "full_attention" in layers else 4
        needed += [("full_attention_interval", every)] if every != 4 else []
    if server == "SGLang" and kind == "olmo3" and isinstance(rope, dict) and "rope_theta" in rope:
        needed.append(("rope_theta", rope["rope_theta"]))
    lacking = ((name, value) for name, value in needed if name not in config)
    return next((f"{json.dumps(name)}: {json.dumps(value)}" for name, value in lacking), "")
