"""Predicted memory of a rank against what torch's own tracker counts of sharded passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sharded_memory
import torch
from sharded_memory import SHAPES, Case, Shape, compared, fake_ranks, write_model
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from asyncrl import config as configuration
from asyncrl.training.memory import predict
from asyncrl.training.models import empty_model
from asyncrl.training.ranks import rank_group
from asyncrl.words import size

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text().partition("## What to write")
ROWS = re.findall(r"^\| (\d+) \| Qwen3-(\S+) \| (.*) \| (.*) \|$", PAGE[2], re.MULTILINE)

OF_CI = {"1"}
"""GPUs of the row that CI predicts; the others, of many seconds each, are `make soak`'s. What is
predicted of several ranks is compared above."""

WIDE = Shape(512, 1536, 3, 8, 4, vocabulary=20_000, head=64)
DEEP = Shape(1024, 4096, 3, 8, 4, vocabulary=2_000, head=128, tied=True)


@pytest.mark.explore
@pytest.mark.parametrize(
    ("shape", "ranks", "recompute"), [(WIDE, 2, False), (DEEP, 8, True)], ids=["wide", "deep"]
)
def test_a_rank_has_what_is_predicted(
    shape: Shape, ranks: int, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sharded_memory.SHAPES, "of a test", shape)
    found = compared(Case("of a test", ranks, 64, 960, recompute))
    assert found.first < found.later
    assert 0.9 < found.predicted / found.later < 1.15


def test_one_piece_at_a_time_is_whole_in_float32_while_a_model_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that fits a GPU only in its own type can be divided there."""
    write_model(WIDE, str(tmp_path))
    model, whole = empty_model(tmp_path, torch.bfloat16), list[int]()
    layer, embedding = (
        sum(parameter.numel() for parameter in module.parameters())
        for module in (model.model.layers[0], model.get_input_embeddings())
    )

    def divide(module: nn.Module, **how: Any) -> nn.Module:
        float32 = [p for p in model.parameters() if p.dtype == torch.float32]
        whole.append(sum(p.numel() for p in float32 if not isinstance(p, DTensor)))
        return fully_shard(module, **how)

    monkeypatch.setattr(rank_group, "fully_shard", divide)
    with fake_ranks(4) as mesh:
        rank_group.shard(model, mesh)
    output = embedding + WIDE.hidden  # and the last norm
    assert whole == [layer] * WIDE.layers + [embedding, output]


def row(gpus: str, *values: str) -> object:
    """A row of the page; one of them is for CI, the others for `make soak`."""
    marks = pytest.mark.explore if gpus in OF_CI else pytest.mark.soak
    return pytest.param(gpus, *values, id=f"{values[0]} on {gpus}", marks=marks)


@pytest.mark.parametrize(("gpus", "model", "settings", "said"), [row(*each) for each in ROWS])
def test_the_page_says_what_is_predicted(
    gpus: str, model: str, settings: str, said: str, tmp_path: Path
) -> None:
    assert {int(each[0]) for each in ROWS} >= {1, 4, 8, 32}
    (common,) = re.findall(r"```toml\n(.*?)```", PAGE[2], re.DOTALL)
    (tmp_path / "run.toml").write_text(common)
    write_model(SHAPES[model.lower()], str(tmp_path))
    sets = re.findall(r"`(\S+) = (\S+)`", settings)
    assert ("train.ranks", gpus) in sets
    config = configuration.load(
        tmp_path / "run.toml",
        [f"model.path={tmp_path}", *(f"{key}={value}" for key, value in sets)],
        {},
    )
    assert size(predict(config).total) == said
