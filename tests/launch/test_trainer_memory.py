"""Rows and refusals about the trainer's memory."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import warm_process
from transformers import Qwen3Config

from asyncrl.config import Config, ConfigError, load
from asyncrl.launch import torch_process, trainer_memory
from asyncrl.launch.trainer_memory import memory_rows
from asyncrl.runtime.processes.machine import memory_bytes
from asyncrl.training.memory_parts import MemoryParts, PredictedMemory

GIB = 2**30
PARTS = MemoryParts(2 * GIB, 4 * GIB, 4 * GIB, 8 * GIB, 0, 30 * GIB, GIB, 4 * GIB)
"""18 GiB that are there all the time, and 31 of a pass."""


def rows(
    monkeypatch: pytest.MonkeyPatch,
    has: int,
    found: PredictedMemory | str,
    *,
    device: str = "cuda",
    ranks: int = 1,
) -> list[tuple[str, ...]]:
    config = load(None, ["model.path=/m", f"train.device={device}", f"train.ranks={ranks}"], {})

    def predicted(_: Config, limit: int) -> PredictedMemory | str:
        assert limit == (max(0, has * GIB - GIB) if device == "cuda" else has * GIB // ranks)
        return found

    for asked in ("gpu_bytes", "memory_bytes"):
        monkeypatch.setattr(trainer_memory, asked, lambda: has * GIB)
    monkeypatch.setattr(trainer_memory, "predicted", predicted)
    return [tuple(row) for row in memory_rows(config)]


def test_a_trainer_that_fits_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = rows(monkeypatch, 80, PredictedMemory(PARTS))
    assert row == (
        "trainer memory",
        "49.0 GiB",
        "weights 2.0 GiB, in float32 once more 4.0 GiB, gradients 4.0 GiB, optimizer 8.0 GiB; in a "
        "pass activations 30.0 GiB and logits 1.0 GiB, or in a step 4.0 GiB more; its GPU has 79.0 "
        "GiB",
    )


def test_one_that_does_not_fit_its_gpu_is_refused_with_what_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = PredictedMemory(PARTS, "train.recompute_activations = true", 25 * GIB)
    with pytest.raises(
        ConfigError,
        match=r"^the trainer needs 49\.0 GiB \(.*\), and its GPU has 39\.0 GiB for it: "
        r"train\.recompute_activations = true would need 25\.0 GiB\.$",
    ):
        rows(monkeypatch, 40, found)
    with pytest.raises(ConfigError, match=r"for it: shorter responses would not fit either; "):
        rows(monkeypatch, 40, PredictedMemory(PARTS))


def test_on_a_processor_it_is_refused_where_weights_alone_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = PredictedMemory(PARTS, "rollout.max_new_tokens = 9", 20 * GIB)
    _, note, _ = rows(monkeypatch, 40, found, device="cpu")
    assert note == (
        "note",
        "trainer memory",
        "more than this machine has: rollout.max_new_tokens = 9 would need 20.0 GiB",
    )
    with pytest.raises(ConfigError, match=r"and this machine has 17\.0 GiB"):
        rows(monkeypatch, 17, PredictedMemory(PARTS), device="cpu")


def test_ranks_have_a_gpu_each_and_share_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = rows(monkeypatch, 80, PredictedMemory(PARTS), ranks=3)
    assert row[2].startswith("of each of the trainer's 3 ranks: weights 2.0 GiB, ")
    with pytest.raises(ConfigError, match=r"^each of the trainer's 3 ranks needs 49\.0 GiB "):
        rows(monkeypatch, 48, PredictedMemory(PARTS), device="cpu", ranks=3)
    assert len(rows(monkeypatch, 54, PredictedMemory(PARTS), device="cpu", ranks=3)) == 3


def test_a_checkpoint_copy_is_a_row_and_a_note_where_it_is_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2^30 weights learn, of 12 bytes each with their moments; on a GPU the copy is elsewhere."""
    said = ("checkpoint copy", "12.0 GiB", "host memory besides, from the first checkpoint on")
    assert rows(monkeypatch, 61, PredictedMemory(PARTS), device="cpu")[1:] == [said]
    assert rows(monkeypatch, 60, PredictedMemory(PARTS), device="cpu")[1:] == [
        said,
        (
            "note",
            "checkpoint copy",
            "with it the trainer needs 61.0 GiB, and this machine has 60.0 GiB: train a smaller "
            "model, or on a larger machine",
        ),
    ]
    assert rows(monkeypatch, 50, PredictedMemory(PARTS))[1:] == [said]
    config = load(None, ["model.dtype=bfloat16", "train.ranks=3", "train.ema=0.9"], {})
    assert trainer_memory.copied_bytes(config, PARTS) == 3 * 18 * GIB


def test_nothing_is_refused_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = rows(monkeypatch, 0, PredictedMemory(PARTS))
    assert row[1] == "49.0 GiB" and "its GPU has" not in row[2]
    assert rows(monkeypatch, 80, "it fails") == [("trainer memory", "not predicted", "it fails")]
    assert memory_rows(load(None, [], {})) == []


def test_a_prediction_leaves_no_directory_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Path]()

    def run(command: list[str], **given: Any) -> subprocess.CompletedProcess[bytes]:
        (cache := Path(given["env"]["TORCHINDUCTOR_CACHE_DIR"])).mkdir(exist_ok=True)
        seen.append(cache)
        return subprocess.CompletedProcess(command, 0, msgspec.json.encode(PredictedMemory(PARTS)))

    monkeypatch.setattr(subprocess, "run", run)
    assert trainer_memory.predicted(load(None, [], {}), 0) == PredictedMemory(PARTS)
    assert not seen[0].exists()


def test_a_model_far_below_what_there_is_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_memory, "model_bound", lambda _: 4 * GIB)
    row, *_ = rows(monkeypatch, 65, PredictedMemory(PARTS))
    assert row[1] == "49.0 GiB"
    assert rows(monkeypatch, 66, PredictedMemory(PARTS)) == [
        (
            "trainer memory",
            "< 4.0 GiB",
            "a rough bound, by the sizes in config.json; its GPU has 65.0 GiB",
        )
    ]


def test_weights_that_learn_are_a_row_where_not_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = MemoryParts(2 * (10**9 + 10**7), 4 * 10**7, 4 * 10**7, 8 * 10**7, 0, GIB, GIB, 0)
    monkeypatch.setattr(trainer_memory, "predicted", lambda *_: PredictedMemory(parts))
    sets = ["model.path=/m", "model.dtype=bfloat16", "model.lora.rank=8"]
    _, row, _ = memory_rows(load(None, sets, {}))
    said = "adapters of rank 8: 1 % of the model's own number"
    assert row == ("weights that learn", "10,000,000", said)


@pytest.mark.explore
def test_another_process_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked from the warm process: a command's is, too, and real ones have such a process each."""
    monkeypatch.setattr(torch_process, "subprocess", SimpleNamespace(run=warm_process.run))
    Qwen3Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    ).save_pretrained(tmp_path)
    config = load(None, [f"model.path={tmp_path}", "train.micro_tokens=1024"], {})
    found = trainer_memory.predicted(config, 2**40)
    assert isinstance(found, PredictedMemory)
    assert 0 < found.parts.gradients <= found.parts.weights
    assert found.parts.activations > 0 and not found.fitting
    (tmp_path / "config.json").write_text("{}")
    failed = trainer_memory.predicted(config, 2**40)
    assert isinstance(failed, str) and "is not a configuration that transformers supports" in failed


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path) -> None:
    memory, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    assert memory_bytes(memory, limit) == 0
    memory.write_text("MemTotal:       2048 kB\nMemFree: 1 kB\n")
    assert memory_bytes(memory, limit) == 2**21
    limit.write_text("max\n")
    assert memory_bytes(memory, limit) == 2**21
    limit.write_text("4096\n")
    assert memory_bytes(memory, limit) == 4096
