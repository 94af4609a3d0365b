"""A model's passes are tried: each planted way of looking at others' tokens is found, and what is
found is what training then does."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn
from training_world import VOCABULARY, Rollout, alone, build, rollouts
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    DeepseekV32Config,
    DogeConfig,
    MistralConfig,
    NemotronConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from asyncrl.training.forward import log_probabilities, may_share, passes, use_passes
from asyncrl.training.models import ModelError
from asyncrl.training.packing import pack
from asyncrl.training.trial import COARSE, try_passes

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
HEADS = {"num_key_value_heads": 1, "head_dim": 8}
FAMILIES: dict[str, tuple[PretrainedConfig, str]] = {
    "nemotron": (NemotronConfig(**SIZES, **HEADS), "padded"),
    "doge": (DogeConfig(**SIZES, **HEADS), "padded"),
    "mistral": (MistralConfig(**SIZES, **HEADS, sliding_window=16), "padded"),
    "bert": (BertConfig(**SIZES), "refused"),
    "deepseek_v32": (
        DeepseekV32Config(
            **SIZES,
            num_key_value_heads=2,
            q_lora_rank=8,
            kv_lora_rank=8,
            qk_nope_head_dim=8,
            qk_rope_head_dim=4,
            v_head_dim=8,
            index_n_heads=2,
            index_head_dim=8,
            index_topk=8,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=16,
            first_k_dense_replace=1,
        ),
        "refused",
    ),
}


def family(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES[name][0]))
    return model.eval()


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_what_has_full_attention_alone_is_given_each_token_once(name: str) -> None:
    model = build(name).eval()
    trial = try_passes(model, 64)
    assert trial.passes == passes(model) == "packed" and trial.distance < 1e-5
    assert not trial.refused


@pytest.mark.parametrize("name", FAMILIES)
def test_families_whose_flags_say_too_much(name: str) -> None:
    """Of nemotron, doge and bert they say that each token may be given once."""
    model, expected = family(name), FAMILIES[name][1]
    assert may_share(model) == (name in ("nemotron", "doge", "bert"))
    if expected == "refused":
        with pytest.raises(ModelError, match=r"cannot be trained here.*docs/models\.md"):
            try_passes(model, 64)
        return
    assert try_passes(model, 64).passes == passes(model) == expected
    every = rollouts(model, seed=1, count=5)
    for rollout in every:
        rollout.prompt = every[0].prompt
    assert off(model, every) < 1e-4


def off(model: PreTrainedModel, every: Sequence[Rollout]) -> float:
    """Largest distance of log-probabilities from those of each rollout alone."""
    ids = np.array([token for r in every for token in r.prompt + r.response], np.int32)
    lengths = [len(r.prompt) for r in every], [len(r.response) for r in every]
    (packed,) = pack(ids, *lengths, shared=may_share(model))
    found = torch.empty(len(packed.tokens))
    found[packed.tokens] = log_probabilities(model, packed, 1.0).detach()
    reference = torch.cat([alone(model, r, 1.0).detach() for r in every])
    return float((found - reference).abs().max())


def spoilt(name: str, how: Callable[[torch.Tensor], torch.Tensor]) -> PreTrainedModel:
    """A model whose last hidden states, [rows, width, size], are changed like this."""
    model = build(name).eval() if name == "qwen3" else family(name)
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    head.register_forward_pre_hook(lambda _, inputs: (how(inputs[0]), *inputs[1:]))
    return model


def ahead(hidden: torch.Tensor) -> torch.Tensor:
    return hidden + hidden.mean(dim=1, keepdim=True)


def beside(hidden: torch.Tensor) -> torch.Tensor:
    return hidden * (1 + 0.1 * (hidden.shape[0] - 1))


def test_a_model_that_looks_ahead_or_has_no_numbers_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Qwen3ForCausalLM.*after or beside it.*alone passes are"):
        try_passes(spoilt("qwen3", ahead), 64)
    with pytest.raises(ModelError, match="are not numbers"):
        try_passes(spoilt("qwen3", lambda hidden: hidden * math.nan), 64)
    broken = spoilt("qwen3", lambda hidden: hidden[:, :, :3])
    with pytest.raises(ModelError, match=r"it fails at a text \(RuntimeError"):
        try_passes(broken, 64)


def test_a_model_that_other_rows_change_is_given_each_sample_in_a_pass_of_its_own() -> None:
    model = spoilt("mistral", beside)
    trial = try_passes(model, 64)
    assert trial.passes == "alone" and "padded passes are" in str(trial)
    assert off(model, rollouts(model, seed=2, count=6)) < 1e-4
    use_passes(model, "padded")
    assert off(model, rollouts(model, seed=2, count=6)) > 1e-2


def test_a_window_is_looked_beyond_where_a_text_of_the_run_may_be() -> None:
    """A model that says nothing of its window: packed passes agree as far as it reaches."""
    model = family("mistral")
    model.config.sliding_window = None
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    assert try_passes(model, 64).passes == "packed"
    seen: list[int] = []
    model = family("mistral")
    model.get_input_embeddings().register_forward_hook(  # type: ignore[no-untyped-call]
        lambda _, inputs, __: seen.append(inputs[0].shape[-1])
    )
    try_passes(model, 64)
    assert max(seen) > 16
    seen.clear()
    try_passes(model, 16)
    assert max(seen) <= 16


def test_bfloat16_has_its_own_tolerance() -> None:
    model = build("qwen3", torch.bfloat16).eval()
    trial = try_passes(model, 64)
    assert trial.passes == "packed" and trial.distance < COARSE
