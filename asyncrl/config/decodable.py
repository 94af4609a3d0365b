"""Models that the embedded engine can decode, by their configuration. Pure: `check` asks before
anything starts, and the engine when it opens.
"""

from __future__ import annotations

from collections.abc import Collection


def undecodable(
    model: str, config: object, context_tokens: int, stop_ids: Collection[int], vocabulary: int
) -> str:
    """The reason why the embedded engine cannot decode a model, and what to do; empty if it can.
    `model` is its class, `config` its configuration, `vocabulary` the rows of its embedding.

    >>> class Config: max_position_embeddings = 32
    >>> undecodable("Qwen3", Config, 64, [], 300)
    'engine.context_tokens is 64, but the model holds 32; lower it'
    >>> undecodable("Qwen3", Config, 32, [5], 300)
    ''
    """
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and context_tokens > longest:
        return f"engine.context_tokens is {context_tokens}, but the model holds {longest}; lower it"
    outside = [stop for stop in stop_ids if not 0 <= stop < vocabulary]
    if outside:
        return (
            f"stop id {outside[0]} is outside the vocabulary of {vocabulary}; use the model's own "
            "tokenizer, and take the id out of its generation_config.json"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if window is not None and window < context_tokens:
        kinds.add("sliding_attention")
    elif window is not None:
        kinds.discard("sliding_attention")
    if other := kinds - {"full_attention"}:
        return (
            f"{model} has layers of {', '.join(sorted(other))}; the embedded engine decodes full "
            "attention only (a sliding window at least as long as engine.context_tokens is full "
            "attention)"
        )
    return ""
