"""Predicted memory of a trainer against what tensors with numbers take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from some_values import some
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, Gemma2Config, PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from asyncrl.bundled.small_vision import Family, new_vision_model
from asyncrl.config import Config, load
from asyncrl.training import memory
from asyncrl.training.adapters import add_adapters
from asyncrl.training.fitting import changes, fitting
from asyncrl.training.forward import make_logits_in_chunks, may_share
from asyncrl.training.memory import LiveBytes, peak_of, predict, worst_batches
from asyncrl.training.memory_parts import MemoryParts
from asyncrl.training.models import ModelError, empty_model
from asyncrl.training.recomputation import recompute
from asyncrl.training.shown_images import freeze_tower

VOCABULARY = 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


PLAIN, LESS = (
    ("model.dtype=float32", f"train.recompute_activations={again}") for again in ("false", "true")
)


def config_of(folder: Path, *more: str, model: PretrainedConfig | None = None) -> Config:
    (model or Qwen3Config(**SIZES)).save_pretrained(folder)
    sets = [
        f"model.path={folder}",
        "engine.context_tokens=64",
        "rollout.max_new_tokens=48",
        "train.micro_tokens=200",
    ]
    return load(None, [*sets, *more], {})


@cache
def predicted(*sets: str) -> MemoryParts:
    """Of the model of `SIZES`, once for each settings: it takes a second."""
    with TemporaryDirectory() as folder:
        return predict(config_of(Path(folder), *sets))


def policies(config: Config) -> int:
    """Bytes of the other policies alone, without a pass."""
    with FakeTensorMode():
        model = empty_model(config.model.path, getattr(torch, config.model.dtype))
    if config.model.lora.rank:
        add_adapters(model, config.model.lora)
    return memory._policies(config, model)


def measured(config: Config) -> MemoryParts:
    """The same of a model with numbers."""
    model = empty_model(config.model.path, getattr(torch, config.model.dtype))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    if config.model.lora.rank:
        add_adapters(model, config.model.lora)
    if config.train.recompute_activations:
        recompute(model)
    make_logits_in_chunks(model)
    return peak_of(model, worst_batches(config, VOCABULARY, shared=may_share(model)), config)


@pytest.mark.explore
@pytest.mark.parametrize("dtype", some(["bfloat16", "float32"]))
@pytest.mark.parametrize("again", some(["true", "false"]))
def test_a_model_without_numbers_takes_what_one_with_numbers_does(
    tmp_path: Path, dtype: str, again: str
) -> None:
    sets = f"model.dtype={dtype}", f"train.recompute_activations={again}"
    found = predicted(*sets)
    assert found == measured(config_of(tmp_path, *sets))
    parameters = sum(p.numel() for p in empty_model(tmp_path).parameters())
    buffers = found.weights - parameters * (4 if dtype == "float32" else 2)
    assert 0 <= buffers < 100
    assert found.masters == (0 if dtype == "float32" else 4 * parameters)
    assert found.gradients == 4 * parameters
    assert 8 * parameters <= found.optimizer < 8 * parameters + 1000
    assert found.step >= 4 * parameters  # roots of the second moments, of all at once
    if again == "false":  # else there is more when a layer is computed again, and no logits are
        assert found.logits >= 48 * 3 * VOCABULARY * 4


@pytest.mark.explore
def test_a_mixture_takes_what_one_with_numbers_does(tmp_path: Path) -> None:
    mixture = Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True
    )
    config = config_of(tmp_path, "model.dtype=bfloat16", model=mixture)
    assert predict(config) == measured(config)


@pytest.mark.explore
@pytest.mark.parametrize(("family", "learns"), [("qwen2_5_vl", False), ("qwen3_vl", True)])
def test_the_tower_for_images_is_predicted_too(
    tmp_path: Path, family: Family, learns: bool
) -> None:
    """And it keeps nothing of a pass where it does not learn."""
    new_vision_model(3, family).save_pretrained(tmp_path)
    sets = f"model.train_vision={str(learns).lower()}", "engine.context_tokens=100"
    config = config_of(tmp_path, *sets, model=AutoConfig.from_pretrained(tmp_path))
    model = new_vision_model(3, family)
    if not learns:
        freeze_tower(model)
    make_logits_in_chunks(model)
    batches = worst_batches(config, VOCABULARY - 40, shared=True, model=model)
    assert all((batch.ids < 0).sum() >= 49 for batch in batches)
    found = predict(config)
    assert found == peak_of(model, batches, config)
    texts = worst_batches(config, VOCABULARY - 40, shared=True)
    without = peak_of(model, texts, config)
    assert without.activations + without.logits < found.activations + found.logits
    assert (found.activations > 3 * without.activations) == learns


def test_padded_rows_are_predicted_too(tmp_path: Path) -> None:
    model = Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=32, max_window_layers=0)
    config = config_of(tmp_path, model=model)
    assert predict(config) == measured(config)


@pytest.mark.explore
def test_small_moments_are_predicted_too(tmp_path: Path) -> None:
    """And nothing of a weight's size beside them in a step."""
    plain = predicted(*PLAIN)
    for optimizer, share in (("adamw_bf16", 2), ("adamw8bit", 3)):
        config = config_of(tmp_path, f"train.optimizer={optimizer}")
        found = predict(config)
        assert found == measured(config)
        assert found.optimizer < 1.1 * plain.optimizer / share
    fused = predict(config_of(tmp_path, "train.optimizer=adamw_fused"))
    assert fused.optimizer == plain.optimizer and fused.step < plain.step
    hosted = predict(config_of(tmp_path, "train.optimizer=adamw_offloaded"))
    assert hosted.optimizer < 0.02 * plain.optimizer and hosted.state < plain.state


@pytest.mark.explore
def test_layers_that_are_computed_again_keep_less() -> None:
    assert predicted(*LESS).activations < 0.7 * predicted(*PLAIN).activations
    of_gpu = "train.device=cuda", "train.ranks=2"
    away = predicted(*LESS, *of_gpu, "train.offload_activations=true").activations
    assert away < predicted(*LESS, *of_gpu).activations


@pytest.mark.explore
def test_ranks_that_compute_a_row_together_share_its_activations() -> None:
    of_gpu = *LESS, "train.device=cuda", "train.ranks=2", "engine.context_tokens=200"
    alone, together = (
        predicted(*of_gpu, f"train.context_ranks={ranks}").activations for ranks in (1, 2)
    )
    assert together < 0.8 * alone


@pytest.mark.explore
def test_capped_logits_are_in_chunks_too(tmp_path: Path) -> None:
    """Of two models of the same sizes, in chunks of few tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncrl.training.chunked_logits.LOGIT_BYTES", 16 * 4 * VOCABULARY)
        plain = predict(config_of(tmp_path))
        capped = predict(config_of(tmp_path, model=Gemma2Config(**SIZES)))
    assert plain.logits <= 3 * 16 * 4 * VOCABULARY
    assert plain.logits <= capped.logits <= 5 * 16 * 4 * VOCABULARY < 48 * 3 * VOCABULARY * 4


@pytest.mark.explore
def test_ranks_share_what_is_there_all_the_time(tmp_path: Path) -> None:
    three = Qwen3Config(**SIZES | {"num_hidden_layers": 3})  # of which two are gathered at a time
    alone, of_four = (
        predict(config_of(tmp_path, "model.dtype=bfloat16", f"train.ranks={ranks}", model=three))
        for ranks in (1, 4)
    )
    parameters = sum(p.numel() for p in empty_model(tmp_path).parameters())
    assert of_four.state == pytest.approx((4 + 4 + 8) * parameters / 4, abs=200)
    assert of_four.step == pytest.approx(alone.step / 4, abs=1)
    layer = sum(p.numel() for n, p in empty_model(tmp_path).named_parameters() if ".layers.0." in n)
    more = "train.ema=0.9", "reference.coefficient=0.1", "staleness.proximal=boundary"
    others = config_of(tmp_path, "model.dtype=bfloat16", "train.ranks=4", *more, model=three)
    assert policies(others) == pytest.approx((4 + 2 + 4) * parameters / 4, abs=200)
    # the embedding of ids is gathered by itself, and let go of after it
    rest = parameters - 3 * layer - VOCABULARY * SIZES["hidden_size"]
    assert of_four.activations == alone.activations + 2 * (rest + 2 * layer) + 4 * layer


@pytest.mark.explore
@pytest.mark.parametrize("dtype", some(["bfloat16", "float32"]))
def test_adapters_alone_have_gradients_and_moments(tmp_path: Path, dtype: str) -> None:
    """And what is kept beside them is theirs."""
    sets = f"model.dtype={dtype}", "model.lora.rank=4"
    found = predicted(*sets)
    assert found == measured(config_of(tmp_path, *sets))
    size = 4 if dtype == "float32" else 2
    parameters = sum(p.numel() for p in empty_model(tmp_path).parameters())
    learn = 4 * sum(
        sum(layer.weight.shape)
        for name, layer in empty_model(tmp_path).named_modules()
        if isinstance(layer, torch.nn.Linear) and name != "lm_head"
    )
    master = 0 if dtype == "float32" else 4
    assert 0 <= found.weights - size * (parameters + learn) < 100
    assert (found.masters, found.gradients) == (master * learn, 4 * learn)
    assert 8 * learn <= found.optimizer < 8 * learn + 1000
    whole = predicted(f"model.dtype={dtype}", "train.recompute_activations=false")
    assert found.step < whole.step / 5
    more = "train.ema=0.9", "reference.coefficient=0.1", "staleness.proximal=boundary"
    assert policies(config_of(tmp_path, *sets, *more)) == (3 * size + master) * learn
    two = predict(config_of(tmp_path, *sets, "train.ranks=2", *more))
    assert 0 <= two.weights - (size * parameters + 4 * learn) // 2 < 100
    assert (two.policies, two.gradients) == (3 * 4 * learn // 2, 4 * learn // 2)


@pytest.mark.parametrize(
    ("setting", "more"),
    [
        ("train.ema=0.9", 2 + 4),
        ("reference.coefficient=0.1", 2),
        ("staleness.proximal=boundary", 2),
    ],
)
def test_other_policies_are_counted(tmp_path: Path, setting: str, more: int) -> None:
    config = config_of(tmp_path, "model.dtype=bfloat16", setting)
    parameters = sum(p.numel() for p in empty_model(tmp_path).parameters())
    assert policies(config) == pytest.approx(more * parameters, rel=0.01)


def test_live_bytes_are_those_of_storages_until_their_last_tensor_is_gone() -> None:
    live = LiveBytes(7)
    with live:
        first = torch.zeros(10)
        view = first[2:]
        del first
        assert live.peak() == {"activations": 40}
        second = torch.zeros(2, 7) + view[0]
        assert live.peak() == {"activations": 40, "logits": 2 * 56}
        del second, view
        live.peak()
        assert sum(live.peak().values()) == 0


def made(config: Config) -> MemoryParts:
    """Memory that grows with tokens, and less where layers are computed again, or ranks compute a
    row together."""
    share = 1 if config.train.recompute_activations else 4
    tokens = config.train.micro_tokens + config.engine.context_tokens
    return MemoryParts(100, 0, 100, 200, 0, share * tokens // config.train.context_ranks, 0, 50)


def test_the_least_change_that_fits_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path)

    def words(limit: int) -> tuple[str, int]:
        found = fitting(config, limit, made)
        assert found.parts == made(config)
        return found.fitting, found.fitting_bytes

    assert words(0) == words(400 + 4 * 264) == ("", 0)
    assert words(1400) == ("train.micro_tokens = 64", 400 + 4 * 128)
    assert words(800) == (
        "train.micro_tokens = 64, train.recompute_activations = true",
        400 + 128,
    )
    assert words(510) == (
        "train.recompute_activations = true, rollout.max_new_tokens = 36, "
        "engine.context_tokens = train.micro_tokens = 52",
        400 + 104,
    )
    assert words(420) == words(300) == ("", 0)
    config = config_of(tmp_path, "train.ranks=6", "train.recompute_activations=true")
    assert words(450) == ("train.micro_tokens = 64, train.context_ranks = 3", 400 + 50)

    def alone(config: Config) -> MemoryParts:
        if config.train.context_ranks > 1:
            raise ModelError("it mixes tokens otherwise")
        return made(config)

    assert fitting(config, 510, alone).fitting.startswith("rollout.max_new_tokens = 36,")


def test_changes_are_settings_that_a_run_may_have(tmp_path: Path) -> None:
    def settings() -> Iterator[list[str]]:
        for words, _ in changes(config_of(tmp_path, "train.ranks=6")):
            sets = []
            for one in words.split(", "):
                *keys, value = one.split(" = ")
                sets += [f"{key}={value}" for key in keys]
            yield sets

    assert [config_of(tmp_path, "train.ranks=6", *sets) for sets in settings()] == [
        changed for _, changed in changes(config_of(tmp_path, "train.ranks=6"))
    ]
