"""Weights under the names of their checkpoint: those of `save_pretrained`, of every family that is
built here, cut out of the parameters without a copy."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from families import build
from safetensors.torch import load_file
from transformers import PreTrainedModel

from asyncrl.training.checkpoint_names import CheckpointNames

FAMILIES = (
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "deepseek_v3",
    "glm4_moe",
    "gpt_oss",
    "llama4_text",
    "gemma3_text",
    "gemma4_text",
    "granitemoe",
    "minimax_m2",
    "mixtral",
    "nemotron_h",
    "olmoe",
)


def parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_bytes_are_those_that_transformers_writes(family: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        model = build(family)
    weights = parameters(model)
    tensors = dict(CheckpointNames(model).tensors(weights))
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    buffers = {name for name, _ in model.named_buffers()}
    assert tensors.keys() <= written.keys()
    assert len(written.keys() - tensors.keys()) <= len(buffers)
    assert all(torch.equal(tensor, written[name]) for name, tensor in tensors.items())
    assert sum(tensor.numel() for tensor in tensors.values()) == model.num_parameters()


def test_experts_are_cut_out_of_their_stack_and_not_copied() -> None:
    model = build("qwen3_moe")
    weights = parameters(model)
    held = {weight.untyped_storage().data_ptr() for weight in weights.values()}
    names = CheckpointNames(model)
    for _ in range(2):  # a conversion keeps nothing of the one before
        tensors = dict(names.tensors(weights))
        assert {tensor.untyped_storage().data_ptr() for tensor in tensors.values()} == held
    stack = weights["model.layers.0.mlp.experts.gate_up_proj"]
    half = stack.shape[1] // 2
    up = tensors["model.layers.0.mlp.experts.3.up_proj.weight"]
    assert torch.equal(up, stack[3, half:])
    assert "model.layers.0.mlp.experts.gate_up_proj" not in tensors
    weights["model.layers.0.mlp.experts.gate_up_proj"] = stack.bfloat16()  # as narrowed ones
    narrowed = dict(names.tensors(weights))
    assert narrowed["model.layers.0.mlp.experts.3.up_proj.weight"].dtype is torch.bfloat16
    assert narrowed["model.layers.1.mlp.experts.3.up_proj.weight"].dtype is torch.float32
