"""The types of weights: a model that a run leaves has that of the directory it was given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from training_world import build

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config import load
from asyncrl.launch.publication_row import weights_row
from asyncrl.training.checkpoint_io import export
from asyncrl.training.models import load_model
from asyncrl.training.stored_dtype import saved_dtype, stored_dtype

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module", params=["qwen3", "llama"])  # tied, and not
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of one model in each type."""
    folder = tmp_path_factory.mktemp("given")
    write_tokenizer(folder)
    for name, dtype in TYPES.items():
        export(folder / name, build(request.param, dtype), folder)
    return folder


@pytest.mark.parametrize(
    ("stored", "trained", "saved"),
    [
        ("float32", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "float32", "float16"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "bfloat16", "bfloat16"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_a_run_leaves_its_model_in_the_type_of_its_directory(
    given: Path, stored: str, trained: str, saved: str, tmp_path: Path
) -> None:
    assert stored_dtype(given / stored) == stored
    row, *notes = weights_row(
        load(None, [f"model.path={given / stored}", f"model.dtype={trained}"], {})
    )
    assert row.value == f"trained in {trained}" and f"stored in {stored}" in row.meaning
    assert f"RUN/model is saved in {saved}" in row.meaning
    assert (", rounded" in row.meaning) == (saved != trained)
    loses = trained == "bfloat16" != stored
    assert [note.name for note in notes] == ["note"] * loses
    assert ("and rounded to bfloat16" in row.meaning) == loses
    assert ("converted without loss" in row.meaning) == (trained == "float32" != stored)

    model = load_model(given / stored, TYPES[trained])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 + 2**-12)  # what training changes is less than bfloat16 can hold
    dtype = TYPES[saved_dtype(trained, given / stored)]
    left = export(tmp_path / "model", model, given, dtype)
    assert stored_dtype(left) == saved
    assert json.loads((left / "config.json").read_text())["dtype"] == saved
    loaded = dict(load_model(left, TYPES[saved]).named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded[name], parameter.to(TYPES[saved])), name


def test_a_directory_of_several_types_or_none_is_saved_as_it_was_trained(
    given: Path, tmp_path: Path
) -> None:
    assert stored_dtype(tmp_path) == ""
    for part, name in enumerate(("float32", "bfloat16")):
        (tmp_path / f"model-{part}.safetensors").symlink_to(given / name / "model.safetensors")
    assert stored_dtype(tmp_path) == "" and saved_dtype("float32", tmp_path) == "float32"
    (tmp_path / "model-2.safetensors").write_bytes(b"x" * 9)
    assert stored_dtype(tmp_path) == ""
