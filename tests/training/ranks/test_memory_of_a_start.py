"""A rank that starts takes no more memory than its part of the model, and little beside it."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from rank_world import on_ranks
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh
from training_world import build
from transformers import AutoModelForCausalLM, Qwen3Config

from asyncrl.training.ranks.opening import opened_by_rank
from asyncrl.training.ranks.rank_group import shard
from asyncrl.training.ranks.stand_in import local

RANKS = 4
CONFIG = Qwen3Config(
    vocab_size=8192,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=5,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=128,
    tie_word_embeddings=True,
)
MOST = 1.2
"""Most host memory of a rank at its start, over its part of the model."""


@pytest.mark.explore
def test_a_rank_starts_with_its_part_alone(tmp_path: Path) -> None:
    """In float32, from two files of 290 MB in all, as the system counts resident memory."""
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(CONFIG).state_dict()
    shapes.pop("lm_head.weight")
    names, files = list(shapes), {"model-1.safetensors": 0, "model-2.safetensors": 1}
    for file, odd in files.items():
        save_file({n: torch.full(shapes[n].shape, 0.01) for n in names[odd::2]}, tmp_path / file)
    weight_map = {n: f"model-{1 + at % 2}.safetensors" for at, n in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    CONFIG.save_pretrained(tmp_path)
    for part, peak in on_ranks(tmp_path / "store", RANKS, partial(started, path=tmp_path)):
        print(f"a part of {part / 1e6:.1f} MB, {peak / 1e6:.1f} MB at the peak: {peak / part:.3f}")
        assert part > 7e7
        assert peak <= MOST * part


def started(mesh: DeviceMesh, path: Path) -> tuple[int, int]:
    """Bytes of this rank's part, and those that it took at its peak to have it."""
    shard(build("qwen3"), mesh)  # what is imported and connected then is no model
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
    before = resident("VmRSS")
    model, weights = opened_by_rank(path, torch.float32, 0, torch.device("cpu"), given=False)
    shard(model, mesh, weights)
    peak = resident("VmHWM") - before
    assert all(bool((local(p) == 0.01).all()) for p in model.parameters())
    return sum(local(parameter).nbytes for parameter in model.parameters()), peak


def resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])
