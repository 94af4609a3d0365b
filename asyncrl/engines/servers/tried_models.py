"""The classes of models that were tried with each server, as docs/models.md has them. Pure.

They are a record, not a rule: the environment of a server says what it serves
(`server_environment.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

_BOTH = frozenset(
    [
        "LlamaForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Glm4MoeForCausalLM",
        "DeepseekV3ForCausalLM",
        "GptOssForCausalLM",
        "Gemma3ForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "OlmoeForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
    ]
)
TRIED: Mapping[str, frozenset[str]] = {
    "sglang": _BOTH | {"MiniMaxM2ForCausalLM"},
    "vllm": _BOTH | {"Llama4ForCausalLM", "Gemma4ForCausalLM"},
}
"""The classes, by the kind of the engine."""


def engines_of(architecture: str, undecodable: str) -> str:
    """The engines that can serve a class of models, in words; `undecodable` is the reason why the
    embedded one cannot, if there is one.

    >>> engines_of("Qwen3ForCausalLM", "")
    'engines: embedded, sglang, vllm'
    >>> engines_of("BambaForCausalLM", "it has states")
    'engines: not embedded (it has states); not tried with sglang, vllm'
    """
    kinds = [] if undecodable else ["embedded"]
    kinds += [kind for kind, classes in TRIED.items() if architecture in classes]
    parts = [", ".join(kinds)] * bool(kinds)
    parts += [f"not embedded ({undecodable})"] * bool(undecodable)
    others = [kind for kind in TRIED if kind not in kinds]
    parts += [f"not tried with {', '.join(others)}"] * bool(others)
    return f"engines: {'; '.join(parts)}"
