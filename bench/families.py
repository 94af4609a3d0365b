"""Families of causal language models, built small: what each does to tokens that share its pass.

For each family that transformers can build from its configuration class with tiny sizes, one model
with random weights is tried as every run's model is (`asyncrl.training.trial`). The result is the
table of docs/models.md.

    python bench/families.py [FAMILY ...]        a line for each; all of them without a name
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from asyncrl.training.models import ModelError
from asyncrl.training.trial import try_passes

VOCABULARY, LAYERS, TOKENS = 97, 2, 48
LARGEST = 2_000_000
"""Parameters of a model that is tiny."""
SMALL: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 32,
    "n_embd": 32,
    "d_model": 32,
    "embedding_size": 32,
    "rotary_dim": 4,
    "head_dim": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "index_topk": 8,
    "o_lora_rank": 8,
    "o_groups": 2,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "ffn_hidden_size": 48,
    "n_inner": 48,
    "d_ff": 48,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "expert_ffn_hidden_size": 24,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "n_layer": LAYERS,
    "n_layers": LAYERS,
    "num_layers": LAYERS,
    "decoder_layers": LAYERS,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "mamba_d_state": 8,
    "state_size": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_expand": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "sliding_window": 8,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "max_seq_len": 256,
    "hidden_size_per_layer_input": 8,
    "initializer_range": 0.3,
    "init_std": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""Sizes, by the names that families have for them."""


def families() -> Iterator[str]:
    """Names of model types that transformers has a causal language model of."""
    yield from MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def small(family: str, sizes: Mapping[str, object] = SMALL) -> PretrainedConfig:
    """A tiny configuration. Raises what its class raises of sizes that it does not allow."""
    make: Any = CONFIG_MAPPING[family]
    default = make()
    has = default.to_dict()
    known = {name: value for name, value in sizes.items() if name in has or hasattr(make, name)}
    if getattr(default, "sliding_window", None) is None:
        known.pop("sliding_window", None)
    if "qk_rope_head_dim" in known:
        known["head_dim"] = known["qk_rope_head_dim"]
        known["num_key_value_heads"] = known["num_attention_heads"]
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if name in vars(default) and isinstance(kinds := getattr(default, name), list):
            known[name] = [kinds[0], kinds[-1]] if len(set(kinds)) > 1 else kinds[:LAYERS]
    config: PretrainedConfig = make(**known)
    return config


def build(family: str, sizes: Mapping[str, object] = SMALL) -> PreTrainedModel:
    """A tiny model of random weights. Raises what its class raises, and ValueError where it is not
    tiny whatever it is told."""
    config, auto = small(family, sizes), AutoModelForCausalLM
    with torch.device("meta"):
        parameters = auto.from_config(copy.deepcopy(config)).num_parameters()
    if parameters > LARGEST:
        raise ValueError(f"{parameters:,} parameters, whatever sizes it is given")
    torch.manual_seed(0)
    model: PreTrainedModel = auto.from_config(config)
    return model.eval()


def tried(family: str) -> str:
    """Outcome of a family, in a few words."""
    try:
        with warnings.catch_warnings(action="ignore"):
            model = build(family)
    except Exception as error:  # noqa: BLE001 (a family may raise what it likes of tiny sizes)
        return f"not built: {type(error).__name__}: {' '.join(str(error).split())[:80]}"
    try:
        return str(try_passes(model, TOKENS))
    except ModelError as error:
        return f"refused: {error}"


def main(names: list[str]) -> None:
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    for family in names or sorted(families()):
        print(f"{family}\t{tried(family)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
