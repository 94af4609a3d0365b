"""Models that the embedded engine cannot decode, by their configuration and the names of their
weights: known before a run, without the model's numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

FULL = "full_attention"


def undecodable(config: Any, weights: Iterable[str], context_tokens: int) -> str:
    """The reason why the embedded engine cannot decode contexts of `context_tokens` with a model of
    this transformers configuration and these weights: the end of a sentence that began with the
    model. Empty if none is known.

    >>> from types import SimpleNamespace as Made
    >>> undecodable(Made(kv_lora_rank=512), [], 64)
    'caches a latent of keys and values, and the embedded engine caches keys and values'
    >>> undecodable(Made(layer_types=["sliding_attention"], sliding_window=64), [], 64)
    ''
    """
    kinds = set(getattr(config, "layer_types", None) or [FULL])
    window = getattr(config, "sliding_window", None)
    if window is not None and window < context_tokens:
        kinds.add("sliding_attention")
    elif window is not None:
        kinds.discard("sliding_attention")
    if other := kinds - {FULL}:
        return (
            f"has layers of {', '.join(sorted(other))}; the embedded engine decodes full attention "
            "only (a sliding window at least as long as engine.context_tokens is full attention)"
        )
    if getattr(config, "kv_lora_rank", None):
        return "caches a latent of keys and values, and the embedded engine caches keys and values"
    if getattr(config, "attn_logit_softcapping", None):
        return "caps its attention's scores, which the embedded engine does not"
    if any(name.endswith(".sinks") for name in weights):
        return "has attention with sinks, which the embedded engine's has not"
    return ""
