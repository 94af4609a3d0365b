"""Layers of a model that get an adapter of `model.lora`."""

from __future__ import annotations


def is_of(target: str, layer: str) -> bool:
    """True if a layer of this name has an adapter by that target.

    >>> is_of("v_proj", "model.layers.0.self_attn.v_proj"), is_of("proj", "layers.0.v_proj")
    (True, False)
    """
    return f".{layer}".endswith(f".{target}")


def is_of_experts(weight: str) -> bool:
    """True if a weight of this name, in a file, belongs to experts of a mixture: to one of them, or
    to all.

    >>> is_of_experts("model.layers.0.mlp.experts.3.up_proj.weight")
    True
    >>> is_of_experts("model.layers.0.mlp.shared_experts.up_proj.weight")
    False
    """
    return "experts" in weight.split(".")
