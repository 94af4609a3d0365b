"""Weights by rows: those of transformers' loading, however the rows are divided, under all names
that files have; and what is missing is said."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from families import build
from safetensors.torch import load_file, save_file
from some_values import some
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training import stored_model
from asyncrl.training.models import ModelError, load_model, model_without_memory
from asyncrl.training.ranks.opening import opened_by_rank
from asyncrl.training.stored_model import StoredModel, rows_of

FAMILIES = ("qwen3_moe", "gpt_oss", "deepseek_v3", "qwen3_next", "llama4_text", "mixtral")
CPU = torch.device("cpu")


def filled(path: Path, dtype: torch.dtype, parts: int = 3) -> tuple[PreTrainedModel, str]:
    """The model, of which every parameter and buffer of the files was read in so many parts, and
    why its files were not read by rows."""
    shape = model_without_memory(path, dtype)
    rows, why = rows_of(path, shape)
    found, kept = dict[str, Tensor](), shape.state_dict()
    for name, tensor in (*shape.named_parameters(), *shape.named_buffers()):
        if name in kept:
            whole = torch.full(tensor.shape, 9.0, dtype=torch.float32)
            first = 0
            for piece in torch.chunk(whole, parts) if whole.dim() else [whole]:
                rows.fill(name, piece, first)
                first += len(piece) if piece.dim() else 1
            found[name] = whole.to(tensor.dtype)
    shape.load_state_dict(found, strict=False, assign=True)
    shape.tie_weights()
    return shape, why


def same(one: PreTrainedModel, other: PreTrainedModel) -> None:
    for kind in (dict(one.named_parameters()), dict(one.named_buffers())):
        for name, tensor in kind.items():
            its = other.get_parameter(name) if tensor.requires_grad else dict(other.named_buffers())
            if isinstance(its, dict):
                its = its.get(name, dict(other.named_parameters()).get(name))
            assert its is not None and torch.equal(tensor, its), name


@pytest.mark.parametrize("family", some(FAMILIES, 2))
def test_rows_are_those_of_transformers_loading(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts one by one, in several files, rounded."""
    monkeypatch.setattr(stored_model, "PIECE_BYTES", 100)
    with warnings.catch_warnings(action="ignore"):
        build(family).save_pretrained(tmp_path, max_shard_size="40KB")
    found, why = filled(tmp_path, torch.bfloat16)
    assert why == ""
    same(load_model(tmp_path, torch.bfloat16), found)


def test_names_of_a_model_without_its_output_layer_are_known_and_tied_ones_once(
    tmp_path: Path,
) -> None:
    model = build("qwen3")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    embedded = weights.pop("model.embed_tokens.weight")
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    tied = {"lm_head.weight": embedded} if model.config.tie_word_embeddings else {}
    bare |= tied or {"embed_tokens.weight": embedded}
    save_file(bare, tmp_path / "model.safetensors", {"format": "pt"})
    found, why = filled(tmp_path, torch.float32)
    assert why == ""
    same(model, found)


def test_what_is_missing_or_wrong_is_said(tmp_path: Path) -> None:
    build("qwen3").save_pretrained(tmp_path, max_shard_size="20KB")
    shape = model_without_memory(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    name, file = min(index.items(), key=lambda item: item[1])
    weights = load_file(tmp_path / file)
    for wrong, words in (
        ({**weights, name: weights[name][:-1]}, f"not complete: {name} and 0 more are missing"),
        ({**weights, name: weights[name] * torch.nan}, f"not all finite: of {name} in {file}"),
    ):
        save_file({n: t.contiguous() for n, t in wrong.items()}, tmp_path / file)
        with pytest.raises(ModelError, match=words):
            whole = torch.empty(shape.get_parameter(name).shape)
            StoredModel(tmp_path, shape).fill(name, whole, 0)
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:-9])
    with pytest.raises(ModelError, match="cannot be read, so they are truncated"):
        opened_by_rank(tmp_path, torch.float32, 1, CPU, given=False)
    (tmp_path / file).unlink()
    with pytest.raises(ModelError, match=f"not complete: {file} is missing, which model.safe"):
        opened_by_rank(tmp_path, torch.float32, 1, CPU, given=False)
