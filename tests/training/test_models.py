"""A model directory is used whole or refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_world import CONFIGS, build

from asyncrl.training.models import (
    ModelError,
    empty_model,
    load_model,
    parameters_for_publication,
    refuse_other_weights,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", CONFIGS)
def test_publishes_every_parameter_once_in_one_order(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path)
    loaded, empty = load_model(tmp_path), empty_model(tmp_path)
    published = list(parameters_for_publication(loaded))
    names = [name for name, _ in published]
    assert names == [name for name, _ in parameters_for_publication(empty)] and len(
        set(names)
    ) == len(names)
    assert len({tensor.data_ptr() for _, tensor in published}) == len(published)
    assert not any(tensor.requires_grad for _, tensor in published)
    assert ("lm_head.weight" in names) == (not model.config.tie_word_embeddings)

    refuse_other_weights(tmp_path, empty)
    destination = dict(empty.named_parameters())
    with torch.no_grad():
        for name, tensor in published:
            destination[name].copy_(tensor)
    ids = torch.arange(12)[None]
    assert torch.equal(empty(ids).logits, model.eval()(ids).logits)
    assert not loaded.training and not empty.training


def test_dtype_is_that_asked_for(directory: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert {p.dtype for p in load_model(directory, dtype).parameters()} == {dtype}
        assert {p.dtype for p in empty_model(directory, dtype).parameters()} == {dtype}


def test_an_empty_model_needs_no_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    assert sum(p.numel() for p in empty_model(directory).parameters()) == sum(
        p.numel() for p in build("llama").parameters()
    )


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no model directory"):
        load_model(tmp_path / "gpt5")


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match=r"has no config\.json"):
        empty_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not a configuration"),
        ("{}", "is not a configuration"),
        ("[]", "is not a configuration"),
        ('{"model_type": "not-there-yet"}', "is of the family 'not-there-yet', which no engine"),
        ('{"model_type": "own", "auto_map": {"AutoConfig": "a.B"}}', "needs code from its own rep"),
    ],
)
def test_a_config_that_is_none(directory: Path, content: str, said: str) -> None:
    (directory / "config.json").write_text(content)
    with pytest.raises(ModelError, match=rf"config\.json {said}"):
        load_model(directory)


def test_no_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        load_model(directory)
    (directory / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(
        ModelError, match=r"only \*\.bin weights, which are pickles: convert them to safetensors"
    ):
        load_model(directory)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_weights_that_are_cut_off(directory: Path, keep: int) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match="cannot be read, so they are truncated"):
        load_model(directory)


def test_weights_that_are_not_all_there(directory: Path) -> None:
    """transformers would make them up, and only warn."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"not complete: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(directory)


def test_weights_of_another_shape(directory: Path) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = torch.ones(3)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="model"):
        load_model(directory)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 64),
        ("intermediate_size", 400),
        ("vocab_size", 300),
        ("num_hidden_layers", 3),
    ],
)
def test_weights_that_the_configuration_does_not_describe(
    directory: Path, name: str, value: int
) -> None:
    """They were found by the trainer, a minute after `check` had said that the run can run."""
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with torch.device("meta"):
        model = empty_model(directory)
    with pytest.raises(ModelError, match=r"another model|not complete: model\.layers\.2"):
        refuse_other_weights(directory, model)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name_and_file(
    number: float, directory: Path
) -> None:
    """A run began with them if the texts of the trial had none of these tokens."""
    weights = load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"][-1, -1] = number
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    words = r"not all finite: of model\.embed_tokens\.weight in model\.safetensors, number [0-9]+ "
    with pytest.raises(ModelError, match=words):
        load_model(directory)
    weights["model.embed_tokens.weight"][-1, -1] = 1.0
    large = {name: tensor.double() for name, tensor in weights.items()}
    large["model.norm.weight"][0] = 1e300
    save_file(large, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"a number of model\.norm\.weight is too large for its"):
        load_model(directory)


def test_quantized_weights_are_not_read_without_their_scales(directory: Path) -> None:
    """transformers ignored the scales, which it does not know, and the model was another."""
    file, name = directory / "model.safetensors", "model.layers.0.self_attn.q_proj.weight"
    weights = load_file(file)
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    save_file(weights | {f"{name}_scale_inv": torch.ones(1, 1)}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"q_proj\.weight\S* in \S+ is quantized, though config"):
        load_model(directory)


def test_a_family_without_a_causal_language_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ModelError, match=r"the family 't5', which no engine serves"):
        empty_model(tmp_path)
