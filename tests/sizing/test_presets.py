"""Presets: each is a model of its own, and agrees with published runs that it was not made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.config import ConfigError, load
from asyncrl.config.devices import DEVICES
from asyncrl.sizing.presets import MODELS, PRESETS, engine_of, preset
from asyncrl.sizing.sizing_command import models_of

CONFIG = load(
    None,
    ["rollout.max_new_tokens=3000", "engine.context_tokens=4000", "train.micro_tokens=8000"],
    {},
)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_obeys_its_device_and_its_model(name: str) -> None:
    """No decode step is faster than the weights that it must read allow, and the cache fits."""
    device_name, _, model_name = name.partition("-")
    device, model, models = DEVICES[device_name], MODELS[model_name], preset(name, CONFIG)
    engine = models.engine
    every = 2e-3 * model.parameters / device.bandwidth / engine.devices  # seconds for all weights
    assert engine.decode_s(256) > every and engine.decode_s(1) > every * model.active / (
        model.parameters
    )
    held = 1e-9 * engine.kv_tokens * model.cache + 2 * model.parameters
    assert 0.5 * device.memory < held / engine.devices < device.memory
    trained_flops = 6e-3 * model.active / models.trainer.token_us * 1e6
    assert 0.03 < trained_flops / device.tflops < 0.5
    assert models.length.mean == 1000


def test_engines_are_as_fast_as_published_ones() -> None:
    """Llama-3.1-8B on one H100, vLLM: about 12,500 tokens/s, the number that decoding's shares were
    chosen by. Twice the devices are faster, but not twice as fast."""
    one = engine_of(DEVICES["h100"], MODELS["8b"], context=500.0)
    assert 256 / one.decode_s(256) == pytest.approx(12_500, rel=0.05)
    two = engine_of(DEVICES["h100"], MODELS["8b"], context=500.0, devices=2)
    assert 1.0 < one.decode_s(256) / two.decode_s(256) < 2.0


def test_a_preset_is_named_and_a_misspelt_one_is_refused(tmp_path: Path) -> None:
    found, origin = models_of(Path("H200-32b"), CONFIG)
    assert found == preset("h200-32b", CONFIG) and "preset h200-32b" in origin
    with pytest.raises(ConfigError, match="did you mean h100-8b"):
        models_of(Path("h100-8bb"), CONFIG)
    with pytest.raises(ConfigError, match="cannot be read"):
        models_of(tmp_path / "none.toml", CONFIG)
