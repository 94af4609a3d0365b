"""The rough bound on a trainer's memory, against the prediction of its own code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config

from asyncrl.config import load
from asyncrl.launch.model_bound import model_bound
from asyncrl.launch.trainer_memory import copied_bytes
from asyncrl.training.memory import predict

SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def saved(path: Path, config: LlamaConfig | Qwen3Config, dtype: str = "float32") -> Path:
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model.to(getattr(torch, dtype)).save_pretrained(path)
    return path


@pytest.mark.explore
@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (Qwen3Config(**SIZES, head_dim=64), "float32"),
        pytest.param(
            Qwen3Config(**SIZES | {"intermediate_size": 1024, "num_hidden_layers": 1}),
            "bfloat16",
            marks=pytest.mark.explore,
        ),
        pytest.param(
            LlamaConfig(**SIZES | {"vocab_size": 5000, "hidden_size": 32}),
            "bfloat16",
            marks=pytest.mark.explore,
        ),
    ],
    ids=["wide heads", "wide layer", "many ids"],
)
def test_a_bound_is_more_than_what_is_predicted_and_not_absurd(
    config: LlamaConfig | Qwen3Config, dtype: str, tmp_path: Path
) -> None:
    path = saved(tmp_path / "model", config, dtype)
    for settings in (
        ["train.micro_tokens=512"],
        ["train.micro_tokens=4096", "engine.context_tokens=2048"],
        ["train.ema=0.9", "staleness.proximal=snapshot", "staleness.max_lag=5"],
    ):
        run = load(None, [f"model.path={path}", *settings], {})
        bound, parts = model_bound(run), predict(run)
        assert bound is not None
        assert 1 < bound / (parts.total + copied_bytes(run, parts)) < 60


def test_what_is_not_known_has_no_bound(tmp_path: Path) -> None:
    path = saved(tmp_path / "model", Qwen3Config(**SIZES))
    sets = [f"model.path={path}"]
    assert model_bound(load(None, sets, {})) is not None
    assert model_bound(load(None, [*sets, "model.lora.rank=8"], {})) is None
    (path / "config.json").write_text('{"text_config": {"hidden_size": 4}}')
    assert model_bound(load(None, sets, {})) is None
    (path / "config.json").unlink()
    assert model_bound(load(None, sets, {})) is None
