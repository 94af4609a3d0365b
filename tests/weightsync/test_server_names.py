"""For each family, servers that fuse its tensors as SGLang's models do: every tensor of the trainer
is compared, and none with the bytes of another."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping

import pytest
import torch
from families import build
from some_values import some
from torch import Tensor

from asyncrl.bundled.small_vision import PATCH, new_vision_model
from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.weightsync.servers.server_checksums import Checks, WrongWeights
from asyncrl.weightsync.servers.server_hashes import of_host
from asyncrl.weightsync.servers.server_names import UnknownName, sources

Weights = dict[str, Tensor]
Place = tuple[str, int]
"""A tensor of the server, and the place of a part in it."""


def qkv(name: str) -> Place | None:
    if match := re.fullmatch(r"(.*)\.([qkv])_proj\.(weight|bias)", name):
        return f"{match[1]}.qkv_proj.{match[3]}", "qkv".index(match[2])
    return None


def gate_up(name: str) -> Place | None:
    if match := re.fullmatch(r"(.*)\.(gate|up)_proj\.(weight|bias)", name):
        return f"{match[1]}.gate_up_proj.{match[3]}", ("gate", "up").index(match[2])
    return None


def experts(name: str) -> Place | None:
    """Expert by expert, each one's gate before its up."""
    if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name):
        first = match[3] in ("gate_proj", "w1")
        if match[3] in ("down_proj", "w2"):
            return f"{match[1]}.w2_weight", int(match[2])
        return f"{match[1]}.w13_weight", 2 * int(match[2]) + (not first)
    return None


def appended(name: str) -> Place | None:
    """The expert of every token behind the others, as SGLang's CUDA builds have it."""
    return experts(re.sub(r"\.shared_experts?\.", ".experts.1000.", name))


def linear(name: str) -> Place | None:
    """Qwen3.5's linear attention, whose layers have no `self_attn`."""
    if match := re.fullmatch(r"(.*)\.in_proj_(qkv|z|b|a)\.weight", name):
        fused = "qkvz" if match[2] in ("qkv", "z") else "ba"
        return f"{match[1]}.in_proj_{fused}.weight", match[2] in ("z", "a")
    return None


def without_attention(name: str) -> Place | None:
    place = qkv(name) or (name, 0)
    return (place[0].replace(".self_attn.", "."), place[1]) if ".self_attn." in name else None


def latent(name: str) -> Place | None:
    if match := re.fullmatch(r"(.*)\.(q_a_proj|kv_a_proj_with_mqa)\.weight", name):
        return f"{match[1]}.fused_qkv_a_proj_with_mqa.weight", match[2] != "q_a_proj"
    return None


def wrapped(name: str) -> Place | None:
    """A server that serves adapters has a module around each layer that may have one."""
    place = qkv(name) or gate_up(name) or (name, 0)
    before, _, leaf = place[0].rpartition(".")
    return (f"{before}.base_layer.{leaf}", place[1]) if before.endswith("_proj") else None


def stacked(name: str) -> Place | None:
    for ours, theirs in (
        ("experts.gate_up_proj_bias", "experts.w13_weight_bias"),
        ("experts.down_proj_bias", "experts.w2_weight_bias"),
        ("experts.gate_up_proj", "experts.w13_weight"),
        ("experts.down_proj", "experts.w2_weight"),
        ("input_linear.weight", "experts.w13_weight"),
        ("output_linear.weight", "experts.w2_weight"),
        ("router.layer.weight", "gate.weight"),
    ):
        if name.endswith(f".{ours}"):
            return name.removesuffix(ours) + theirs, 0
    return None


def tower(name: str) -> Place | None:
    """A tower for images, whose checkpoint has fused queries, keys and values."""
    if match := re.fullmatch(
        r"(visual\..*\.attn)\.qkv\.(weight|bias)", name.removeprefix("model.")
    ):
        return f"{match[1]}.qkv_proj.{match[2]}", 0
    return None


DENSE = (qkv, gate_up)
FAMILIES: Mapping[str, tuple[Callable[[str], Place | None], ...]] = {
    "llama": DENSE,
    "qwen2": (wrapped,),
    "qwen3": DENSE,
    "gemma3_text": DENSE,
    "olmo2": DENSE,
    "granite": DENSE,
    "qwen3_moe": (experts, *DENSE),
    "mixtral": (experts, *DENSE),
    "olmoe": (experts, *DENSE),
    "minimax_m2": (experts, *DENSE),
    "glm4_moe": (appended, *DENSE),
    "deepseek_v3": (latent, appended, *DENSE),
    "qwen3_next": (without_attention, appended, *DENSE),
    "qwen3_5_text": (without_attention, linear, *DENSE),
    "qwen3_5_moe_text": (without_attention, linear, experts, *DENSE),
    "granitemoe": (stacked, *DENSE),
    "gpt_oss": (stacked, qkv),
    "llama4_text": (stacked, *DENSE),
    "qwen2_5_vl": (tower, *DENSE),
    "qwen3_vl": (tower, *DENSE),
}
TRANSPOSED = ("gpt_oss", "llama4_text")
"""Families whose stacks of experts a server turns over."""


def checkpoint(family: str, seed: int) -> Weights:
    """The family's tensors as they are sent, no two with the same values."""
    with warnings.catch_warnings(action="ignore"):
        model = new_vision_model(0, family) if family in PATCH else build(family)
    random = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(parameter.shape, generator=random)
        for name, parameter in model.named_parameters()
    }
    return dict(CheckpointNames(model).tensors(weights))


def held(family: str, tensors: Weights) -> Weights:
    """The tensors of a server that holds them, by the family's rules alone."""
    parts: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
    for name, tensor in tensors.items():
        places = (rule(name) for rule in FAMILIES[family])
        target, at = next((place for place in places if place), (name, 0))
        if family in TRANSPOSED and tensor.dim() == 3:
            tensor = tensor.transpose(1, 2)
        parts[target].append((at, tensor))
    return {
        target: torch.cat(
            [part for _, part in sorted(found, key=lambda each: each[0])]
        ).contiguous()
        for target, found in parts.items()
    }


def report(server: Weights) -> list[dict[str, str]]:
    return [
        {
            name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]
            for name, tensor in server.items()
        }
    ]


@pytest.mark.parametrize("family", some(FAMILIES))
def test_every_byte_is_compared_with_its_own(family: str) -> None:
    first, second = checkpoint(family, 1), checkpoint(family, 2)
    cache = {"model.layers.0.rotary_emb.cos_sin_cache": torch.zeros(3)}
    server = held(family, first) | cache
    checks = Checks(first, report(server), of_host)
    made = sources(first, server)
    assert sorted(name for parts in made.values() for name in parts) == sorted(first)
    assert checks.derived == list(cache)
    checks.verify(checks.expect(first), report(server))
    assert checks.exact == len(server) - 1 and not checks.inexact
    expected = checks.expect(second)
    for name, tensor in second.items():
        for at in (0, -1):
            wrong = tensor.clone()
            wrong.view(-1).view(torch.uint8)[at] ^= 1
            (target,) = (target for target, parts in made.items() if name in parts)
            with pytest.raises(WrongWeights, match=f"^{re.escape(target)} holds bytes that differ"):
                checks.verify(expected, report(held(family, {**second, name: wrong}) | cache))
    checks.verify(expected, report(held(family, second) | cache))


def test_a_tensor_that_a_server_would_take_for_another_is_refused() -> None:
    names = ["model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.mlp.up_proj.weight"]
    with pytest.raises(UnknownName, match=f"one parameter for {names[0]} and {names[1]}"):
        sources(names, names)
