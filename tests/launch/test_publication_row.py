"""The row of `asyncrl check` about a publication: the bytes of it, and the pause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from asyncrl.config import load
from asyncrl.launch.publication_row import delta_row, publication_row, stored_weights
from asyncrl.runtime.run_dir import CLUSTER_MODELS

SERVERS = ["engine.kind=sglang", "engine.sglang.launch=['sglang']"]
ALONE = "model.lora.rank=4", "model.lora.served=adapters"
MODELS = """
[engine]
decode_ms = [[1, 1.0], [8, 2.0]]
[length]
mean = 100
sigma = 1.0
[trainer]
token_us = 10.0
[network]
swap_s = {swap_s}
"""


def checked(folder: Path) -> str:
    """Words of `asyncrl check` of a folder's run.toml, which is found to be right."""
    argv = [sys.executable, "-m", "asyncrl.cli", "check", "run.toml"]
    environment = os.environ | {"COLUMNS": "300"}
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def model(folder: Path) -> list[str]:
    """Settings of a model of two files with 1,024 × 1,024 and 1,024 weights."""
    save_file({"a": np.zeros((1024, 1024), np.float16)}, folder / "model-1.safetensors")
    save_file({"b": np.zeros(1024, np.float16)}, folder / "model-2.safetensors")
    save_file({"b": np.zeros(9, np.float16)}, folder / "consolidated.safetensors")
    return [f"model.path={folder}"]


@pytest.mark.parametrize(
    ("sets", "value"),
    [
        ([], "4.0 MiB"),
        (["publication.dtype=bfloat16"], "2.0 MiB"),
        (["publication.dtype=fp8"], "4.0 MiB"),  # values of fp8, in the type of the model
        (["model.dtype=bfloat16"], "2.0 MiB"),
        (["model.lora.rank=4"], "the adapters"),
    ],
)
def test_the_bytes_are_those_of_the_type_that_is_sent(
    sets: list[str], value: str, tmp_path: Path
) -> None:
    row = publication_row(load(None, [*model(tmp_path), *sets], {}))
    assert stored_weights(tmp_path) == 1024 * 1025
    assert (row.name, row.value) == ("publication", value)


@pytest.mark.parametrize(
    ("sets", "pause"),
    [
        ([], "staged: engines decode while the weights come, and pause for about one"),
        (["publication.path=direct"], "direct: every engine pauses from the first byte"),
        (SERVERS, "staged: a server decodes while the weights come to its machine"),
    ],
)
def test_the_pause_is_that_of_the_way_and_of_the_engine(sets: list[str], pause: str) -> None:
    row = publication_row(load(None, sets, {}))
    assert row.value == "the bundled model" and row.meaning.startswith(pause)
    alone = publication_row(load(None, [*SERVERS, *ALONE], {}))
    assert alone.meaning == "staged: a server loads them beside its base, and no engine pauses"


JOINED = ["cluster.kind=agents", "cluster.agents=1", "model.path=/m", "model.dtype=bfloat16"]


@pytest.mark.parametrize(
    ("sets", "share"),
    [
        (["train.lr=1e-6"], "about 2 % of these bytes"),
        (["train.lr=1e-5"], "about 14 %"),
        (["train.lr=1e-4"], ""),  # where nearly all change
        (["train.lr=1e-6", "cluster.kind=local"], ""),
        (["train.lr=1e-6", "model.dtype=float32"], ""),
        (["train.lr=1e-6", "publication.full_every=20"], ""),
    ],
)
def test_changes_alone_are_advised_where_they_may_pay(sets: list[str], share: str) -> None:
    rows = delta_row(load(None, [*JOINED, *sets], {}))
    assert [share in row.meaning for row in rows] == ([True] if share else [])


@pytest.mark.explore
def test_check_says_the_pause_of_the_models_beside_a_run(tmp_path: Path) -> None:
    """And what is wrong with them, which keeps no run from its start."""
    (tmp_path / "run.toml").write_text("[train]\nsteps = 2\n")
    models = tmp_path / CLUSTER_MODELS
    models.write_text(MODELS.format(swap_s=0.01234))
    assert "about one decode step; 12.3 ms in models.toml" in checked(tmp_path)
    models.write_text(MODELS.format(swap_s=-1))
    assert "models.toml: these are not models" in checked(tmp_path)


@pytest.mark.parametrize("torn", [b"", b"\xff" * 64, b'\x02\0\0\0\0\0\0\0{"'])
def test_a_file_that_is_none_costs_the_number_alone(torn: bytes, tmp_path: Path) -> None:
    """The number is left out, and who loads the file says what is wrong with it."""
    sets = model(tmp_path)
    (tmp_path / "model-3.safetensors").write_bytes(torn)
    assert publication_row(load(None, sets, {})).value == "all weights"
