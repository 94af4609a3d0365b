"""The room for checkpoints: what a run keeps is compared with what its disks have, before it
starts."""

from __future__ import annotations

import shutil
from collections import namedtuple
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from asyncrl.config import Config, ConfigError, load
from asyncrl.launch import checkpoint_room, preflight
from asyncrl.launch.checkpoint_room import checkpoint_bytes, room_rows
from asyncrl.words import size

WEIGHTS = 1000 * 4000 + 4000
EACH = WEIGHTS * (4 + 8)
"""float32 weights, and two moments of each."""
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (folder := tmp_path / "model").mkdir()
    layer = np.zeros((1000, 4000), np.float16)  # stored in two bytes
    save_file(
        {"model.layers.0.q_proj.weight": layer, "model.norm.weight": layer[0]},
        folder / "model.safetensors",
    )
    return folder


def config(model: Path, *sets: str) -> Config:
    settings = [f"model.path={model}", "model.dtype=float32", f"run.dir={model.parent / 'run'}"]
    settings += ["train.steps=100", "train.checkpoint_every=10"]
    loaded = load(None, [*settings, *sets], {})
    return preflight.resolved(loaded, None, datetime(2026, 1, 2))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The disk, with so many checkpoints' bytes free."""
    free = [10.0]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, int(free[0] * EACH)))
    return free


@pytest.mark.parametrize(
    ("sets", "of_each"),
    [
        ((), 4 + 8),
        (("model.dtype=bfloat16",), 2 + 4 + 8),
        (("train.ema=0.9",), 4 + 4 + 8),
        (("model.lora.rank=8",), None),
    ],
)
def test_a_checkpoint_has_weights_masters_moments_and_average(
    sets: tuple[str, ...], of_each: int | None, model: Path
) -> None:
    learn = WEIGHTS if of_each else 8 * (1000 + 4000)
    assert checkpoint_bytes(config(model, *sets)) == learn * (of_each or 12)


@pytest.mark.parametrize(
    ("targets", "learn"),
    [
        ("all-linear", 2 * (5 + 7) + 3 * 2 * (4 + 6)),
        ("['a.q_proj']", 2 * (5 + 7)),
        ("['gate_up_proj']", 2 * 2 * (4 + 6) + 2 * (4 + 6)),
        ("['q_proj','experts.gate_up_proj']", 2 * (5 + 7) + 3 * 2 * (4 + 6)),
    ],
)
def test_adapters_are_counted_by_the_weights_of_files(
    targets: str, learn: int, tmp_path: Path
) -> None:
    """A target that no file names is a tensor of all experts: those of each are counted."""
    layer, expert = np.zeros((5, 7), np.float32), np.zeros((4, 6), np.float32)
    names = ("0.gate_proj", "0.up_proj", "1.gate_proj")
    save_file(
        {"model.layers.0.a.q_proj.weight": layer, "lm_head.weight": layer}
        | {f"model.layers.0.mlp.experts.{name}.weight": expert for name in names},
        tmp_path / "model.safetensors",
    )
    sets = "model.lora.rank=2", f"model.lora.targets={targets}"
    assert checkpoint_bytes(config(tmp_path, *sets)) == 12 * learn


@pytest.mark.parametrize(
    ("free", "sets", "refused", "noted"),
    [
        (10.0, (), False, False),
        (2.5, (), False, True),
        (1.9, (), True, False),
        (1.9, ("train.checkpoint_every=0",), False, False),  # one, at the end
        (0.9, ("train.checkpoint_every=0",), True, False),
        (3.9, ("run.copy=copy",), True, False),
        (5.9, ("run.copy=copy",), False, True),
        (2.5, ("run.copy=s3://bucket/run",), False, True),
    ],
)
def test_two_must_have_room_and_a_third_should(
    free: float, sets: tuple[str, ...], refused: bool, noted: bool, model: Path, disk: list[float]
) -> None:
    disk[0] = free
    checked = config(model, *sets)
    if refused:
        with pytest.raises(ConfigError) as caught:
            room_rows(checked)
        said = str(caught.value)
        assert size(int(free * EACH)) in said and size(EACH) in said and "make room" in said
        return
    rows = room_rows(checked)
    assert rows[0].value == size(EACH) and size(int(free * EACH)) in rows[0].meaning
    assert any(row.name == "note" for row in rows) is noted


def test_what_a_resumed_run_has_already_needs_no_more_room(
    model: Path, disk: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk[0] = 1.1
    with pytest.raises(ConfigError, match="two checkpoints"):
        room_rows(config(model))
    monkeypatch.setattr(checkpoint_room, "complete", lambda folder: [1, 2])
    assert [row.name for row in room_rows(config(model))] == ["checkpoints"]
    disk[0] = 0.9
    with pytest.raises(ConfigError, match="one checkpoint"):
        room_rows(config(model))


def test_check_and_train_both_ask(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(config: Config) -> list[object]:
        raise ConfigError("asked")

    monkeypatch.setattr(preflight, "room_rows", asked)
    monkeypatch.setattr(preflight, "check_directory", lambda *_: None)
    with pytest.raises(ConfigError, match="asked"):
        preflight.check(config(model), None, 2)


def test_the_bundled_model_needs_none() -> None:
    assert room_rows(load(None, ["run.dir=r"], {})) == []


@pytest.mark.parametrize("devices", [(1, 1), (1, 2), (2, 1), (70_001, 70_001), (70_001, 70_002)])
def test_directories_are_together_where_their_disk_is_one(
    devices: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of devices are equal, and not the same object."""
    of = {"one": devices[0], "other": devices[1]}

    def existing(path: Path) -> Any:
        number = int(str(of[path.name]))
        return SimpleNamespace(stat=lambda: SimpleNamespace(st_dev=number))

    monkeypatch.setattr(checkpoint_room, "_existing", existing)
    config = load(None, ["run.dir=one", "run.copy=other"], {})
    found = dict(checkpoint_room._by_disk(config))
    if devices[0] == devices[1]:
        assert found == {"run.dir and run.copy": [Path("one"), Path("other")]}
    else:
        assert found == {"run.dir": [Path("one")], "run.copy": [Path("other")]}
