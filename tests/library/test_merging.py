"""`rl.merge`: what it writes, and what it refuses before anything is written."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import asyncrl as rl
from asyncrl.bundled import bundled_model
from asyncrl.cli import main
from asyncrl.library.merging import factors
from asyncrl.runtime.run_dir import LOCK


def model(folder: Path, value: float, **config: object) -> Path:
    """A model directory as far as a merge reads it; each weight has this value."""
    folder.mkdir(parents=True)
    bundled_model.write_tokenizer(folder, ["What is {}?"])
    settings = {"model_type": "qwen3", "vocab_size": bundled_model.VOCABULARY} | config
    (folder / "config.json").write_text(json.dumps(settings))
    save_file({"w": torch.full((3,), value)}, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return model(tmp_path / "a", 1.0), model(tmp_path / "b", 2.0, transformers_version="4.1")


def weights(folder: Path) -> list[float]:
    found: list[float] = load_file(folder / "model.safetensors")["w"].tolist()
    return found


def test_a_mean_a_weighted_mean_and_task_arithmetic(
    tmp_path: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = pair
    assert weights(rl.merge([a, b], tmp_path / "mean")) == [1.5] * 3
    assert weights(rl.merge([a, b], tmp_path / "weighted", weights=[3, 1])) == [1.25] * 3
    assert weights(rl.merge([b], tmp_path / "less", weights=[-1], base=a)) == [0.0] * 3
    assert main(["merge", str(a), str(b), "-o", str(tmp_path / "sum"), "--base", str(a)]) == 0
    assert weights(tmp_path / "sum") == [2.0] * 3
    out = capsys.readouterr()
    assert "sum is written." in out.out
    card = (tmp_path / "weighted/README.md").read_text()
    assert "| 0.75 |" in card and "| 0.25 |" in card
    names = {path.name for path in (tmp_path / "mean").iterdir()}
    assert names >= {"config.json", "tokenizer.json", "model.safetensors", "README.md"}


def test_a_run_stands_for_its_model_and_one_that_lives_is_refused(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    a, b = pair
    run = tmp_path / "run"
    b.rename(model(run, 0.0) / "model")
    (run / "run.toml").write_text("")
    assert weights(rl.merge([a, run], tmp_path / "mean")) == [1.5] * 3
    with (run / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(rl.ConfigError, match="still training"):
            rl.merge([a, run], tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_models_begun_apart_are_merged_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rl.merge([model(tmp_path / "a", 1.0), model(tmp_path / "b", -1.0)], tmp_path / "out")
    assert "trained from one model" in capsys.readouterr().err


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The sentence of a merge that is refused."""
    assert main(["merge", *map(str, arguments)]) == 2
    text = capsys.readouterr().err
    assert text.startswith("asyncrl: ") and text.count("\n") == 1
    return text


def test_bad_input_is_one_sentence_and_writes_nothing(
    tmp_path: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = pair
    out = tmp_path / "out"
    assert "at least two" in refused(capsys, a, "-o", out)
    assert "no such directory" in refused(capsys, a, tmp_path / "nowhere", "-o", out)
    assert "1 weights for 2" in refused(capsys, a, b, "-o", out, "--weights", "1")
    assert "at least 0" in refused(capsys, a, b, "-o", out, "--weights=-1,2")
    for unusable in ("nan,1", "inf,1", "1e308,1e308"):
        assert "NaN, infinite or too" in refused(capsys, a, b, "-o", out, "--weights", unusable)
    assert "there already" in refused(capsys, a, b, "-o", b)
    wide = model(tmp_path / "wide", 1.0, hidden_size=7)
    assert "hidden_size" in refused(capsys, a, wide, "-o", out)
    other = model(tmp_path / "other", 1.0)
    bundled_model.write_tokenizer(other, ["Who are you, {}?"])
    assert "vocabulary" in refused(capsys, a, other, "-o", out)
    (b / "model.safetensors").write_bytes(b"torn")
    assert "cannot be read" in refused(capsys, a, b, "-o", out)
    (tmp_path / "agent.toml").write_text('[agent]\nrun = "asyncrl.agents.examples.guess:guess"\n')
    agents = refused(capsys, a, a, "-o", out, "--evaluate", tmp_path / "agent.toml")
    assert "agent.run" in agents
    assert not out.exists() and not list(tmp_path.glob(".partial*"))


def test_factors_add_up_to_1() -> None:
    for weights, based in (([0.2, 0.5], True), ([2.0, 5.0], False), (None, True), (None, False)):
        assert sum(factors(2, weights, based)) == pytest.approx(1.0)
