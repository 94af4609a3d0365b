"""Models that the embedded engine can decode, by their configuration and their weights' names.
Pure: `check` asks before anything starts, and the engine when it opens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

FULL = "full_attention"


def undecodable(
    model: str,
    config: object,
    weights: Iterable[str],
    context_tokens: int,
    stop_ids: Collection[int],
    vocabulary: int,
) -> str:
    """The reason why the embedded engine cannot decode a model, and what to do; empty if it can.
    `model` is its class, `config` its configuration, `weights` the names of its weights,
    `vocabulary` the rows of its embedding.

    >>> class Config: max_position_embeddings = 32
    >>> undecodable("Qwen3", Config, [], 64, [], 300)
    'engine.context_tokens is 64, but the model holds 32; lower it'
    >>> undecodable("Qwen3", Config, [], 32, [5], 300)
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
    if attention := _other_attention(config, weights, context_tokens):
        return (
            f"{model} has {attention}, which the embedded engine does not decode; set engine.kind "
            "to sglang or vllm where docs/models.md says that they serve it"
        )
    return ""


def _other_attention(config: object, weights: Iterable[str], context_tokens: int) -> str:
    """Attention of a model that is not a softmax over all earlier keys, in words; empty if none.

    >>> class Config: layer_types, sliding_window = ["sliding_attention", "full_attention"], 64
    >>> _other_attention(Config, [], 65), _other_attention(Config, [], 64)
    ('layers of sliding_attention shorter than engine.context_tokens', '')
    """
    kinds = set(getattr(config, "layer_types", None) or [FULL])
    window = getattr(config, "sliding_window", None)
    if window is not None and window < context_tokens:
        kinds.add("sliding_attention")
    elif window is not None:
        kinds.discard("sliding_attention")
    if other := kinds - {FULL}:
        shorter = " shorter than engine.context_tokens" * (other == {"sliding_attention"})
        return f"layers of {', '.join(sorted(other))}{shorter}"
    if getattr(config, "kv_lora_rank", None):
        return "a latent in place of keys and values"
    if getattr(config, "attn_logit_softcapping", None):
        return "attention whose scores are capped"
    if any(name.endswith(".sinks") for name in weights):
        return "attention with sinks"
    return ""
