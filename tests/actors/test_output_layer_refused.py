"""A model whose output layer cannot compute in float32 is bad input, whichever actor finds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from train_support import tiny_model

from actors import roles
from asyncrl.config import load
from asyncrl.config.errors import BAD_INPUT
from asyncrl.ipc.messages import Role
from asyncrl.observe.run_dir import INITIAL
from asyncrl.training import models


@pytest.mark.parametrize("role", ["rollout", "trainer"])
async def test_it_ends_by_one_sentence(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model(tmp_path / INITIAL)

    def headless(opened: Any) -> Any:
        def open_model(*given: Any) -> Any:
            model = opened(*given)
            model.set_output_embeddings(torch.nn.Identity())
            return model

        return open_model

    for name in ("load_model", "empty_model"):
        monkeypatch.setattr(models, name, headless(getattr(models, name)))
    config = load(None, ["model.dtype=bfloat16", "model.output_dtype=float32"], {})
    place = roles.ActorContext(role, 0, 0, 1, os.getpid(), tmp_path, config, False)
    with pytest.raises(SystemExit) as ended:
        await roles.ROLES[role](place)
    assert ended.value.code == BAD_INPUT
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "is a Identity and no linear layer" in sentence
    assert "set model.output_dtype to weights" in sentence
