"""Settings of adapters (`model.lora`): what contradicts itself in them, and what they stand for."""

from __future__ import annotations

from asyncrl.config.published import rounded
from asyncrl.config.ranks import ranks_of
from asyncrl.config.schema import Config, LoraConfig
from asyncrl.config.schema.section import Contradictions

ALL_LINEAR = "all-linear"
"""The value of `model.lora.targets` that stands for every linear layer but the output layer."""


def named_targets(lora: LoraConfig) -> tuple[str, ...]:
    """The last parts of names that `targets` lists; none where it stands for all layers."""
    if isinstance(lora.targets, str):
        return () if lora.targets == ALL_LINEAR else (lora.targets,)
    return lora.targets


def is_of(target: str, layer: str) -> bool:
    """True if a layer of this name has an adapter by that target.

    >>> is_of("v_proj", "model.layers.0.self_attn.v_proj"), is_of("proj", "layers.0.v_proj")
    (True, False)
    """
    return f".{layer}".endswith(f".{target}")


def lora_contradictions(config: Config) -> Contradictions:
    """Those of settings with adapters."""
    lora = config.model.lora
    if not lora.rank:
        return
    if lora.targets != ALL_LINEAR and not all(named_targets(lora) or [""]):
        yield (
            ("model.lora.rank", "model.lora.targets"),
            f"no layer has an adapter by that: name layers, or set targets to {ALL_LINEAR}",
        )
    if ALL_LINEAR in named_targets(lora):
        yield (
            ("model.lora.targets",),
            f"{ALL_LINEAR} stands for every layer, and not beside others: set targets to it alone",
        )
    if ranks_of(config.train) > 1:
        yield (
            ("model.lora.rank", "train.ranks"),
            "several ranks divide weights that learn, and have no adapters yet: set rank to 0, or "
            "lower ranks to 1",
        )
    if config.publication.path == "direct":
        yield (
            ("model.lora.rank", "publication.path"),
            "whole weights are made of adapters beside the engine's own: set path to staged",
        )
    if rounded(config):
        yield (
            ("model.lora.rank", "publication.dtype"),
            "adapters are sent as they are, and their base is the model's own: set dtype to model",
        )
