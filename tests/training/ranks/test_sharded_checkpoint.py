"""A checkpoint of several ranks is one of any number: training goes on from it as if nothing had
happened."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rank_world import SMALL_PACKS, on_ranks
from torch.distributed.device_mesh import DeviceMesh
from training_world import build, micro_batch, rollouts
from transformers import AutoModelForCausalLM

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training import packing
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model
from asyncrl.training.ranks.rank import ALONE
from asyncrl.training.ranks.rank_group import shard

TRAIN = TrainConfig(
    lr=1e-2, lr_warmup_steps=2, lr_schedule="cosine", steps=8, weight_decay=0.1, ema=0.9
)
Weights = dict[str, NDArray[np.float32]]


def two_steps(
    mesh: DeviceMesh | None, run: Path, tokenizer: Path, dtype: torch.dtype, start: Path | None
) -> Weights:
    """Two steps from the checkpoint `start`, or from the beginning, and then a checkpoint; gives
    the masters as they are then, and at rank 0 their average as it is evaluated."""
    model = build("qwen3", dtype) if start is None else load_model(start, dtype)
    rank = shard(model, mesh) if mesh else ALONE
    learner = Learner(model, TRAIN, StalenessConfig(), 1.0, rank=rank)
    if start is not None:
        restore(start, learner)
    for _ in range(2):
        every = rollouts(build("llama"), seed=learner.version, count=5)
        learner.accumulate(*micro_batch(every, every, learner.version))
        learner.step()
    save(run, learner, learner.version, tokenizer)
    assert learner.average is not None
    found = {name: rank.whole(p).float().numpy() for name, p in learner.master_weights.named()}
    averaged = learner.average.gathered()
    named = () if averaged is None else averaged.named_parameters()
    return found | {f"average of {name}": p.detach().float().numpy() for name, p in named}


@pytest.mark.explore
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_four_ranks_then_two_then_one_are_one(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PACKED_TOKENS", SMALL_PACKS)
    run, tokenizer = tmp_path / "run", tmp_path / "initial"
    tokenizer.mkdir()
    given = (run, tokenizer, dtype)
    on_ranks(tmp_path / "a", 4, partial(_two_steps, given=given, start=None))
    first, second = run / "checkpoints/step-000002", run / "checkpoints/step-000004"
    on_ranks(tmp_path / "b", 2, partial(_two_steps, given=given, start=first))
    found = two_steps(None, *given, second)

    one, expected = tmp_path / "one", Weights()
    for start in (None, one / "checkpoints/step-000002", one / "checkpoints/step-000004"):
        expected = two_steps(None, one, tokenizer, dtype, start)
    to = 1e-5 if dtype == torch.float32 else 2e-2
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() <= to, name

    published = AutoModelForCausalLM.from_pretrained(second)
    assert published.dtype == dtype


def _two_steps(
    mesh: DeviceMesh, given: tuple[Path, Path, torch.dtype], start: Path | None
) -> Weights:
    return two_steps(mesh, *given, start)
