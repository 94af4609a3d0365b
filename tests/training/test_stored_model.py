"""Weights by rows: those of transformers' loading, of every family that is built here, however the
rows are divided, and with little memory beside them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from families import build
from test_checkpoint_names import FAMILIES
from transformers import PreTrainedModel

from asyncrl.training import stored_model
from asyncrl.training.models import load_model, model_without_memory
from asyncrl.training.stored_model import rows_of

MERGED = {"gpt_oss", "llama4_text", "granitemoe", "nemotron_h", "qwen3_5_moe_text"}


def filled(path: Path, dtype: torch.dtype, parts: int) -> tuple[PreTrainedModel, dict, str]:
    """Every parameter and buffer of the files, read in so many parts."""
    shape = model_without_memory(path, dtype)
    assert all(p.is_meta for p in shape.parameters() if p.requires_grad)
    rows, why = rows_of(path, shape)
    found = {}
    kept = shape.state_dict()
    for name, tensor in (*shape.named_parameters(), *shape.named_buffers()):
        if name in kept:
            whole = torch.full(tensor.shape, 9.0, dtype=torch.float32)
            first = 0
            for piece in torch.chunk(whole, parts) if whole.dim() else [whole]:
                rows.fill(name, piece, first)
                first += len(piece) if piece.dim() else 1
            found[name] = whole
    return shape, found, why


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_transformers_loading(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_model, "PIECE_BYTES", 100)
    with warnings.catch_warnings(action="ignore"):
        build(family).save_pretrained(tmp_path, max_shard_size="40KB")
    for dtype in (torch.float32, torch.bfloat16):
        expected = load_model(tmp_path, dtype)
        shape, found, why = filled(tmp_path, dtype, 3)
        print(family, why)
        whole = dict(expected.state_dict())
        for name, tensor in found.items():
            assert torch.equal(tensor, whole[name].float()), name
        own = dict(expected.named_buffers())
        for name, buffer in shape.named_buffers():
            if name not in found:
                assert torch.equal(buffer, own[name]), name
