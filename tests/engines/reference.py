"""Independent references for the embedded engine: small random models, and decoding by full
forwards without any cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 40
CONTEXT = 64
COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": None}
ARCHITECTURES = ("qwen3", "llama", "gpt2")


def random_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model whose logits are spread enough that greedy choices are clear."""
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model: PreTrainedModel
    if name == "qwen3":
        model = Qwen3ForCausalLM(
            Qwen3Config(
                **COMMON,
                **sizes,
                head_dim=8,
                max_position_embeddings=CONTEXT,
                tie_word_embeddings=True,
            )
        )
    elif name == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(
                **COMMON, **sizes, max_position_embeddings=CONTEXT, tie_word_embeddings=False
            )
        )
    else:
        model = GPT2LMHeadModel(
            GPT2Config(**COMMON, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT)
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return model.eval()


def full_log_probabilities(
    model: PreTrainedModel, ids: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """[len(ids), vocabulary]: row i is the distribution of token i + 1, by one full forward."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()
    return torch.log_softmax(logits / (temperature or 1.0), -1)


def behaviour_of(
    model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0
) -> np.ndarray:
    every = full_log_probabilities(model, [*prompt, *response], temperature)
    return np.array(
        [every[len(prompt) - 1 + i, token].item() for i, token in enumerate(response)], np.float32
    )


def greedy(model: PreTrainedModel, prompt: Sequence[int], tokens: int) -> list[int]:
    """transformers' own greedy decoding."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
    )
    return [int(token) for token in out[0, len(prompt) :]]
