"""Whole weights that a rollout actor makes of received adapters: those that the trainer's own
adapters make, bit for bit; of an average too; and another base is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from train_support import tiny_model

from asyncrl.actors import roles
from asyncrl.actors.actor_context import ActorContext
from asyncrl.config import load
from asyncrl.config.errors import BAD_INPUT
from asyncrl.runtime.run_dir import INITIAL
from asyncrl.training.adapters import adapters, add_adapters, merged, published, set_adapters
from asyncrl.training.models import load_model
from asyncrl.weightsync.adapted_base import AdaptedBase
from asyncrl.weightsync.transport import Received


def place_of(run: Path, *sets: str) -> ActorContext:
    tiny_model(run / INITIAL)
    config = load(None, ["model.lora.rank=3", *sets], {})
    return ActorContext("rollout", 0, 0, 1, os.getpid(), run, config, False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_the_trainers_own(tmp_path: Path, dtype: str) -> None:
    place = place_of(tmp_path, f"model.dtype={dtype}")
    lora = place.config.model.lora
    base = AdaptedBase(place.initial, place.dtype, lora)
    trainer = load_model(place.initial, place.dtype)
    add_adapters(trainer, lora)
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        set_adapters(trainer, {n: torch.randn_like(t) for n, t in adapters(trainer)})
        sent = {name: tensor.clone() for name, tensor in published(trainer)}
        made.append((sent, dict(merged(trainer))))
    (sent, whole), (of_average, whole_average) = made
    found = base.merged(Received([7], sent, of_average))
    assert found.checksums == [7]
    assert found.weights is not None and found.average is not None
    for got, expected in ((found.weights, whole), (found.average, whole_average)):
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], expected[name]) for name in expected)
    assert any(not torch.equal(whole[name], whole_average[name]) for name in whole)
    assert base.merged(Received([], sent)).average is None


async def test_a_model_without_such_layers_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = place_of(tmp_path, "model.lora.targets=['nowhere']")
    with pytest.raises(SystemExit) as ended:
        await roles.rollout(place)
    assert ended.value.code == BAD_INPUT
    assert "there is no such layer" in capsys.readouterr().err
