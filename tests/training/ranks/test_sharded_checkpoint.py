"""A checkpoint of several ranks is one of any number: training goes on from it as if nothing had
happened."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from rank_world import SMALL_PACKS, on_ranks
from torch.distributed.device_mesh import DeviceMesh
from training_world import build, micro_batch, rollouts
from transformers import AutoModelForCausalLM

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training import packing
from asyncrl.training.checkpoint_io import restore, restore_state, save
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model
from asyncrl.training.ranks.given_state import share_state
from asyncrl.training.ranks.opening import opened_by_rank
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.ranks.rank_group import shard
from asyncrl.training.stored_state import read_state

TRAIN = TrainConfig(
    lr=1e-2, lr_warmup_steps=2, lr_schedule="cosine", steps=8, weight_decay=0.1, ema=0.9
)
Weights = dict[str, NDArray[np.float32]]


def trained(dtype: torch.dtype) -> TrainConfig:
    """Settings for a model of this type: one of bfloat16 has moments of 8 bits, one of float32 has
    them in host memory."""
    optimizer = "adamw_offloaded" if dtype == torch.float32 else "adamw8bit"
    return msgspec.structs.replace(TRAIN, optimizer=optimizer)


def two_steps(
    mesh: DeviceMesh | None, run: Path, tokenizer: Path, dtype: torch.dtype, start: Path | None
) -> Weights:
    """Two steps from the checkpoint `start`, or from the beginning, and then a checkpoint; gives
    the masters as they are then, and at rank 0 their average as it is evaluated."""
    if mesh and start:
        model, weights = opened_by_rank(start, dtype, 0, torch.device("cpu"), given=False)
        rank: Rank = shard(model, mesh, weights)
    else:
        model = build("qwen3", dtype) if start is None else load_model(start, dtype)
        rank = shard(model, mesh) if mesh else ALONE
    learner = Learner(model, trained(dtype), StalenessConfig(), 1.0, rank=rank)
    if start is not None:
        restore(start, learner)
    return steps_and_weights(learner, run, tokenizer)


def steps_and_weights(learner: Learner, run: Path, tokenizer: Path) -> Weights:
    """Two steps, and a checkpoint; gives what `two_steps` does."""
    rank = learner.rank
    for _ in range(2):
        every = rollouts(build("llama"), seed=learner.version, count=5)
        learner.accumulate(*micro_batch(every, every, learner.version))
        learner.step()
    save(run, learner, learner.version, tokenizer)
    assert learner.average is not None
    found = {name: rank.whole(p).float().numpy() for name, p in learner.master_weights.named()}
    averaged = {name: rank.as_computed(p) for name, p in learner.average.weights().items()}
    return found | {f"average of {name}": p.float().numpy() for name, p in averaged.items()}


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
    for name, array in expected.items():
        apart = np.abs(found[name] - array)
        if dtype == torch.float32:
            assert apart.max() <= 1e-5, name
        else:  # where a gradient is near 0, its rounding may turn a single step of Adam around
            assert apart.mean() <= 1e-3, name  # of the 1e-2 or more that they moved

    published = AutoModelForCausalLM.from_pretrained(second)
    assert published.dtype == dtype


@pytest.mark.explore
def test_ranks_that_cannot_read_a_checkpoint_go_on_from_what_rank_0_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank begins with another model, and has no file."""
    monkeypatch.setattr(packing, "PACKED_TOKENS", SMALL_PACKS)
    run, tokenizer = tmp_path / "run", tmp_path / "initial"
    tokenizer.mkdir()
    given, first = (run, tokenizer, torch.bfloat16), run / "checkpoints/step-000002"
    two_steps(None, *given, None)
    expected, _ = on_ranks(tmp_path / "a", 2, partial(_two_steps, given=given, start=first))
    found, _ = on_ranks(tmp_path / "b", 2, partial(_two_steps_given, given=given, start=first))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def _two_steps_given(
    mesh: DeviceMesh, given: tuple[Path, Path, torch.dtype], start: Path
) -> Weights:
    """As `two_steps`, from what rank 0 alone reads."""
    run, tokenizer, dtype = given
    index, cpu = mesh.get_rank(), torch.device("cpu")
    # the other has a directory without weights
    path = tokenizer if index else start
    if index == 0:
        shutil.copy(start / "config.json", tokenizer)
    dist.barrier()
    model, weights = opened_by_rank(path, dtype, index, cpu, given=True)
    rank = shard(model, mesh, weights, writes=index == 0)
    learner = Learner(model, trained(dtype), StalenessConfig(), 1.0, rank=rank)
    state = share_state(None if index else read_state(start), cpu)
    assert state is not None
    restore_state(state, learner)
    assert share_state(None, cpu) is None
    return steps_and_weights(learner, run, tokenizer)


def _two_steps(
    mesh: DeviceMesh, given: tuple[Path, Path, torch.dtype], start: Path | None
) -> Weights:
    return two_steps(mesh, *given, start)
