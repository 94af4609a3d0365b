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
from collections.abc import Collection, Iterable, Iterator, Mapping

FUSED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "qkv_proj": (
        ("q_proj", "k_proj", "v_proj"),
        ("query", "key", "value"),
        ("query_net", "key_net", "value_net"),
        ("qkv",),  # of a tower for images
    ),
    "qkv": (("q", "k", "v"), ("q_proj", "k_proj", "v_proj")),
    "kv_proj": (("k_proj", "v_proj"), ("key_net", "value_net")),
    "qk_proj": (("q_proj", "k_proj"),),
    "qkvb_proj": (("q_proj", "k_proj", "v_proj", "b_proj"),),
    "qkvr": (("wq_du", "wk_dv", "wv_dv", "wr_du"),),
    "index_qkv_proj": (("index_q_proj", "index_k_proj", "index_v_proj"),),
    "merged_qkv": (("wq", "wk", "wv"),),
    "merged_kv": (("k_proj", "v_proj"),),
    "merged_linear": (("gate_proj", "up_proj"),),
    "merged_proj": (("gate_proj", "dense_h_to_4h"),),
    "fc13": (("fc1", "fc3"),),
    "w13": (("w1", "w3"),),
    "in_proj_qkvg": (("q_proj", "k_proj", "v_proj", "g_proj"),),
    "conv1d": (("q_conv1d", "k_conv1d", "v_conv1d"),),
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3"), ("w2", "w1"), ("c_fc_0", "c_fc_1")),
    "in_proj_qkvz": (("in_proj_qkv", "in_proj_z"),),
    "in_proj_ba": (("in_proj_b", "in_proj_a"),),
    "fused_qkv_a_proj_with_mqa": (("q_a_proj", "kv_a_proj_with_mqa"),),
    "fused_qkv_a_proj": (("q_a_proj", "kv_a_proj_with_mqa"),),
    "fused_qkvbfg_a_proj": (("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj"),),
    "fused_qkvbfg_proj": (("q_proj", "k_proj", "v_proj", "b_proj", "f_proj", "g_proj"),),
    "fused_qkvg_proj": (("q_proj", "k_proj", "v_proj", "g_proj"),),
    "fused_bfg_a_proj": (("b_proj", "f_a_proj", "g_a_proj"),),
    "qkvabz_proj": (("q_proj", "k_proj", "v_proj", "a_proj", "b_proj", "g_proj"),),
    "fused_fg_b_proj": (("f_b_proj", "g_b_proj"),),
    "qkv_conv1d": (("q_conv1d", "k_conv1d", "v_conv1d"),),
}
"""The modules of a checkpoint that a module of a server may be made of, in order."""

EXPERTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "w13": (("gate_proj", "up_proj"), ("w1", "w3"), ("up_proj",)),
    "w2": (("down_proj",), ("w2",)),
}
"""For a stack of all experts of a layer, each one's modules in a checkpoint, in order."""

STACKS: Mapping[str, str] = {"w13": "gate_up_proj", "w2": "down_proj"}
"""For the same, its name in a checkpoint that has a stack as well."""

_SHARED = ("shared_experts", "shared_expert")
"""The expert of every token, which a server may append to the stack of the others."""

_ROOTS = ("model", "language_model", "backbone", "transformer")
"""Modules around all layers, of which servers and checkpoints have other ones."""

_DROPPED = ("self_attn", "base_layer")
"""Modules that only one side has: a server may do without the first, whose parts are the layer's;
and one that serves adapters has the second around each weight that may have one."""

_STACKED = re.compile(
    r"(?P<parent>.*\.experts)(\.routed_experts)?\.(?P<stack>w13|w2)_(?:weight_)?"
    r"(?P<leaf>weight_scale_inv|weight|bias)"
)

_RENAMED = {
    "embeddings": "embed_tokens",
    "embedding": "embed_tokens",
    "attn": "self_attn",
    "A_log": "A",
    "norm_f": "norm",
}
"""Modules and parameters that a server calls otherwise. `A` is computed from `A_log`."""

_MOVED = {
    "block_sparse_moe.input_linear.weight": "block_sparse_moe.experts.gate_up_proj",
    "block_sparse_moe.output_linear.weight": "block_sparse_moe.experts.down_proj",
    "block_sparse_moe.router.layer.weight": "block_sparse_moe.gate.weight",
    "router.per_expert_scale": "per_expert_scale",
    "moe.per_expert_scale": "per_expert_scale",
}
"""Ends of names that a server has elsewhere in a layer."""


SCALES = "_scale_inv"
"""End of the name of the scales of a weight in fp8 blocks, in checkpoints and servers alike."""


class UnknownName(Exception):
    """The server's model has no place for a tensor; it would take it without a word, and serve its
    old weights."""


def sources(ours: Iterable[str], theirs: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each tensor of the server that is made of ours, the names of its parts, in order. Raises
    UnknownName for one of ours without a place, or with that of another."""
    own = dict[str, str]()
    for name in ours:
        if (other := own.setdefault(_bare(name), name)) != name:
            raise UnknownName(f"its model has one parameter for {other} and {name}")
    targets = {name: _bare(name) for name in theirs}
    layers = _Layers(own, targets.values())
    made: dict[str, tuple[str, ...]] = {}
    for target, bare in targets.items():
        if parts := layers.parts(bare):
            made[target] = tuple(own[part] for part in parts)
    placed = {part for parts in made.values() for part in parts}
    for name in own.values():
        if name not in placed:
            more = (
                ": its weights are not in fp8 blocks, or not all that are here; serve a model "
                "whose quantization_config has quant_method fp8 and weight_block_size [128, 128], "
                "or set publication.dtype to model"
            )
            raise UnknownName(
                f"its model has no parameter for {name}{more if name.endswith(SCALES) else ''}"
            )
    for name in theirs:
        if name.endswith(SCALES) and name not in made:
            raise UnknownName(
                f"its model has {name}, and this run sends no scales for it: set publication.dtype "
                "to fp8 where its blocks are 128 by 128, or serve a model that is not quantized"
            )
    return made


def _bare(name: str) -> str:
    """A name without the modules around all layers, in the checkpoint's words.

    >>> _bare("model.language_model.layers.0.mlp.down_proj.weight")
    'layers.0.mlp.down_proj.weight'
    >>> _bare("model.layers.0.moe.experts.w2_weight")
    'layers.0.experts.w2_weight'
    """
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _ROOTS:
        parts.pop(0)
    renamed = [_RENAMED.get(part, part) for part in parts]
    bare = ".".join(part for part in renamed if part not in _DROPPED)
    for end, moved in _MOVED.items():
        if bare.endswith(f".{end}"):
            bare = bare.removesuffix(end) + moved
    return bare.replace(".moe.experts.", ".experts.")


class _Layers:
    """The layers of a checkpoint with the tensors `own`, on a server with `targets`; all bare."""

    def __init__(self, own: Collection[str], targets: Iterable[str]) -> None:
        self._own = own
        numbered = re.compile(r"(.*\.experts)\.([0-9]+)\.")
        self._experts: dict[str, int] = {}  # by the module that holds them
        for name in own:
            if match := numbered.match(name):
                count = max(self._experts.get(match[1], 0), int(match[2]) + 1)
                self._experts[match[1]] = count
        shared = re.compile(rf"(.*)\.({'|'.join(_SHARED)})\.")
        apart = {match[1] for name in targets if (match := shared.match(name))}
        self._appended = {
            f"{match[1]}.experts": f"{match[1]}.{match[2]}"
            for name in own
            if (match := shared.match(name)) and match[1] not in apart
        }

    def parts(self, target: str) -> tuple[str, ...]:
        """The parts of a tensor of the server; empty where none of ours is in it."""
        if target in self._own:
            return (target,)
        choices = self._choices(target)
        whole = (parts for parts in choices if parts and all(part in self._own for part in parts))
        return next(whole, ())

    def _choices(self, target: str) -> Iterator[tuple[str, ...]]:
        if match := _STACKED.fullmatch(target):
            parent, stack, leaf = match["parent"], match["stack"], match["leaf"]
            yield (f"{parent}.{STACKS[stack]}{'_bias' if leaf == 'bias' else ''}",)
            held = [f"{parent}.{expert}" for expert in range(self._experts.get(parent, 0))]
            if parent in self._appended:
                held.append(self._appended[parent])
            for modules in EXPERTS[stack]:
                yield tuple(f"{each}.{module}.{leaf}" for each in held for module in modules)
            return
        module, _, leaf = target.rpartition(".")
        parent, _, fused = module.rpartition(".")
        for modules in FUSED.get(fused, ()):
            yield tuple(f"{parent}.{each}.{leaf}" for each in modules)
