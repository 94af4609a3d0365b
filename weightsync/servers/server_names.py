"""The tensors of a server's model, and the tensors of a checkpoint that each is made of.

A server fuses tensors of the checkpoint that it loads: queries, keys and values, gates and ups, all
experts of a layer. Its checksums are of what it holds, so they are compared with the parts in their
order. What is fused is a property of its layers, which architectures share; the tables below are
what the pinned wheels of SGLang and vLLM say in their models' `stacked_params_mapping` and
`packed_modules_mapping` (tests/sglang and tests/vllm compare them with the installed ones).

    model.layers.0.self_attn.qkv_proj.weight ← q_proj.weight, k_proj.weight, v_proj.weight
    model.layers.0.mlp.experts.w13_weight    ← experts.0.gate_proj.weight, experts.0.up_proj.weight,
                                               experts.1.gate_proj.weight, and so on
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

FUSED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "qkv_proj": (
        ("q_proj", "k_proj", "v_proj"),
        ("query", "key", "value"),
        ("query_net", "key_net", "value_net"),
    ),
    "qkv": (("q", "k", "v"), ("q_proj", "k_proj", "v_proj")),
    "kv_proj": (("k_proj", "v_proj"), ("key_net", "value_net")),
    "qk_proj": (("q_proj", "k_proj"),),
    "qkvb_proj": (("q_proj", "k_proj", "v_proj", "b_proj"),),
    "merged_qkv": (("wq", "wk", "wv"),),
    "merged_kv": (("k_proj", "v_proj"),),
    "merged_linear": (("gate_proj", "up_proj"),),
    "merged_proj": (("gate_proj", "dense_h_to_4h"),),
    "fc13": (("fc1", "fc3"),),
    "w13": (("w1", "w3"),),
    "in_proj_qkvg": (("q_proj", "k_proj", "v_proj", "g_proj"),),
    "conv1d": (("q_conv1d", "k_conv1d", "v_conv1d"),),
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3"), ("c_fc_0", "c_fc_1")),
    "in_proj_qkvz": (("in_proj_qkv", "in_proj_z"),),
    "in_proj_ba": (("in_proj_b", "in_proj_a"),),
    "fused_qkv_a_proj_with_mqa": (("q_a_proj", "kv_a_proj_with_mqa"),),
    "fused_qkv_a_proj": (("q_a_proj", "kv_a_proj_with_mqa"),),
    "fused_qkvbfg_a_proj": (("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj"),),
    "fused_fg_b_proj": (("f_b_proj", "g_b_proj"),),
    "qkv_conv1d": (("q_conv1d", "k_conv1d", "v_conv1d"),),
}
"""The modules of a checkpoint that a module of a server may be made of, in order."""

EXPERTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "w13": (("gate_proj", "up_proj"), ("w1", "w3"), ("up_proj",)),
    "w2": (("down_proj",), ("w2",)),
}
"""For a stack of all experts of a layer, each one's modules in a checkpoint, in order."""

STACKS: Mapping[str, str] = {
    "w13_weight": "gate_up_proj",
    "w13_bias": "gate_up_proj_bias",
    "w2_weight": "down_proj",
    "w2_bias": "down_proj_bias",
}
"""The same for families whose checkpoints have such stacks themselves (gpt-oss, Llama 4)."""

_STACKED = re.compile(
    r"(?P<parent>.*\.experts)(\.routed_experts)?\.(?P<stack>w13|w2)_(?P<leaf>weight|bias)"
)

_RENAMED = {
    "embeddings": "embed_tokens",
    "embedding": "embed_tokens",
    "attn": "self_attn",
    "A_log": "A",
    "norm_f": "norm",
}
"""Modules and parameters that a server calls otherwise. `A` is computed from `A_log`."""

_ROOTS = ("model", "language_model", "backbone", "transformer")
"""Modules around all layers, of which servers and checkpoints have other ones."""


class UnknownName(Exception):
    """The server's model has no place for a tensor; it would take it without a word, and serve its
    old weights."""


def sources(ours: Iterable[str], theirs: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each tensor of the server that is made of ours, the names of its parts, in order. Raises
    UnknownName for one of ours without a place."""
    own = {_bare(name): name for name in ours}
    experts = _experts(own)
    made: dict[str, tuple[str, ...]] = {}
    for target in theirs:
        if parts := _parts(_bare(target), own, experts):
            made[target] = tuple(own[part] for part in parts)
    placed = {part for parts in made.values() for part in parts}
    for name in own.values():
        if name not in placed:
            raise UnknownName(f"its model has no parameter for {name}")
    return made


def _bare(name: str) -> str:
    """A name without the modules around all layers, in the checkpoint's words.

    >>> _bare("model.language_model.layers.0.mlp.down_proj.weight")
    'layers.0.mlp.down_proj.weight'
    """
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _ROOTS:
        parts.pop(0)
    return ".".join(_RENAMED.get(part, part) for part in parts)


def _experts(own: Collection[str]) -> dict[str, int]:
    """Number of experts of each layer that has some, by the name of the module that holds them."""
    numbered = re.compile(r"(.*\.experts)\.([0-9]+)\.")
    counts: dict[str, int] = {}
    for name in own:
        if match := numbered.match(name):
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    return counts


def _parts(target: str, own: Collection[str], experts: Mapping[str, int]) -> tuple[str, ...]:
    """The parts of a tensor of the server, bare; empty where none of ours is in it."""
    if target in own:
        return (target,)
    if match := _STACKED.fullmatch(target):
        parent, leaf = match["parent"], match["leaf"]
        choices = [
            tuple(
                f"{parent}.{expert}.{module}.{leaf}"
                for expert in range(experts.get(parent, 0))
                for module in modules
            )
            for modules in EXPERTS[match["stack"]]
        ]
        choices.append((f"{parent}.{STACKS[match['stack'] + '_' + leaf]}",))
    else:
        module, _, leaf = target.rpartition(".")
        parent, _, fused = module.rpartition(".")
        choices = [
            tuple(f"{parent}.{part}.{leaf}" for part in parts) for parts in FUSED.get(fused, ())
        ]
    return next((choice for choice in choices if choice and all(p in own for p in choice)), ())
