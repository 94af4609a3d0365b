"""A reference or a teacher with another vocabulary is refused in one sentence, before anything
starts."""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from asyncrl.bundled import bundled_model
from asyncrl.config import Config, ConfigError, load
from asyncrl.launch import model_directories, preflight
from asyncrl.tasks import open_task

NOW = datetime(2026, 1, 2, 3, 4, 5)


def config(*sets: str) -> Config:
    made = load(None, ["task.train_size=20", "task.eval_size=4", *sets], {})
    return preflight.resolved(made, None, NOW)


def directory(path: Path, frame: list[str], rows: int = bundled_model.VOCABULARY) -> Path:
    """A model directory as far as it is read before a run."""
    bundled_model.write_tokenizer(path, frame)
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": rows}))
    (path / "model.safetensors").write_bytes(b"")
    return path


@pytest.fixture
def frame() -> list[str]:
    return bundled_model.task_frame(open_task(config().task, 0))


def refusal(*sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight.check(config(*sets), None, 2)
    text = str(caught.value)
    assert text.endswith(".") and text.isprintable()
    return text


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("who", ["reference", "teacher"])
def test_the_same_vocabulary_passes_and_another_does_not(
    who: str, tmp_path: Path, frame: list[str]
) -> None:
    sets = (f"{who}.coefficient=0.5", f"{who}.path={tmp_path / 'm'}")
    directory(tmp_path / "m", frame)
    preflight.check(config(*sets), None, 2)
    directory(tmp_path / "m", [*frame, "one more of its own"])
    preflight.check(config(*sets), None, 2)
    directory(tmp_path / "m", ["one before", *frame])
    text = refusal(*sets)
    assert f"{who}.path" in text and "its vocabulary differs" in text
    assert f"{frame[0]!r} is 258 here and is 259 there" in text
    directory(tmp_path / "m", [])
    assert f"{frame[0]!r} is 258 here and is not there" in refusal(*sets)


def test_a_given_model_is_compared_by_its_own_tokenizer(tmp_path: Path, frame: list[str]) -> None:
    own, other = directory(tmp_path / "own", ["ab", "cd"]), directory(tmp_path / "other", frame)
    sets = (f"model.path={own}", "reference.coefficient=0.5", f"reference.path={other}")
    assert "'ab' is 258 here" in refusal(*sets)
    directory(own, frame)
    preflight.check(config(*sets), None, 2)
    directory(own, frame, rows=512)
    assert "may sample 512" in refusal(*sets)


def test_a_directory_that_is_none_is_refused_by_its_setting(tmp_path: Path) -> None:
    text = refusal("teacher.coefficient=1", f"teacher.path={tmp_path / 'no'}")
    assert "teacher.path" in text and "there is no such directory" in text
    (tmp_path / "no").mkdir()
    assert "no weights" in refusal("teacher.coefficient=1", f"teacher.path={tmp_path / 'no'}")


@pytest.mark.parametrize("whole", [False, True])
def test_an_adapter_is_no_model(tmp_path: Path, frame: list[str], whole: bool) -> None:
    """Also beside a whole one: which base it belongs to, nobody can tell."""
    path = tmp_path / "m"
    if whole:
        directory(path, frame)
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/other"}')
    said = refusal(f"model.path={path}")
    assert "has an adapter (adapter_config.json) of another model: merge the two" in said


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to nowhere"])
def test_weights_that_are_no_file_are_refused_and_not_opened(
    tmp_path: Path, frame: list[str], kind: str
) -> None:
    path = directory(tmp_path / "m", frame)
    another = path / "model-00002-of-00002.safetensors"
    match kind:
        case "pipe":
            os.mkfifo(another)
        case "device":
            another.symlink_to("/dev/zero")
        case "folder":
            another.mkdir()
        case _:
            another.symlink_to(tmp_path / "nowhere")
    (path / "config.json").write_text('{"vocab_size": 260, "tie_word_embeddings": true}')
    said = refusal(f"model.path={path}")
    assert f"{another.name} in it is not a file; give a local" in said


def test_weights_that_this_user_may_not_read_are_said_to_be_so(
    tmp_path: Path, frame: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    path = directory(tmp_path / "m", frame)
    monkeypatch.setattr(model_directories, "open_regular", refused)
    assert "model.safetensors in it cannot be read (Permission denied)" in refusal(
        f"model.path={path}"
    )


def test_behind_a_server_the_tokenizer_is_enough(tmp_path: Path, frame: list[str]) -> None:
    path = directory(tmp_path / "m", frame)
    (path / "model.safetensors").unlink()
    sets = ["teacher.coefficient=1", f"teacher.path={path}", "teacher.server=http://127.0.0.1:1"]
    preflight.check(config(*sets), None, 2)
    assert "api_key_file" in refusal(*sets, "teacher.api_key_file=none")


@pytest.mark.explore
def test_adapters_need_peft_and_layers(
    tmp_path: Path, frame: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory(tmp_path / "m", frame)
    names = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight")
    save_file({name: np.zeros((2, 2), np.float32) for name in names}, path / "model.safetensors")
    sets = (f"model.path={path}", "model.lora.rank=2")
    preflight.check(config(*sets), None, 2)
    preflight.check(config(*sets, "model.lora.targets=['q_proj','mlp.up_proj']"), None, 2)
    assert (
        f"model.lora.targets has 'qproj', and no layer of {path} has a name with that ending; the "
        "nearest is q_proj."
    ) in refusal(*sets, "model.lora.targets=['up_proj','qproj']")
    names = (
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.experts.1.up_proj.weight",
    )
    save_file({name: np.zeros((2, 2), np.float32) for name in names}, path / "model.safetensors")
    preflight.check(config(*sets, "model.lora.targets=['gate_up_proj']"), None, 2)
    monkeypatch.setattr(model_directories, "find_spec", lambda name: None)
    assert (
        "model.lora.rank is 2, and adapters need peft, which is not installed: run "
        "`make extras` in a clone, or pip install 'asyncrl[lora]', or set rank to 0."
    ) in refusal(*sets)
    preflight.check(config(sets[0]), None, 2)


def test_weights_that_cannot_be_read_are_a_sentence(tmp_path: Path, frame: list[str]) -> None:
    path = directory(tmp_path / "m", frame)  # its weights are an empty file
    said = refusal(f"model.path={path}", "model.lora.rank=2", "model.lora.targets=q_proj")
    assert "model.safetensors in it cannot be read" in said


def test_a_family_that_needs_a_trial_is_told_from_its_config(tmp_path: Path) -> None:
    """`train` makes the model before it begins, unless its family is one that engines serve."""
    for text, known in (
        ('{"model_type": "qwen3"}', True),
        ('{"model_type": "t5"}', False),
        ('{"model_type": 3}', False),
        ("{", False),
    ):
        (tmp_path / "config.json").write_text(text)
        assert model_directories.familiar(tmp_path) is known
    (tmp_path / "config.json").unlink()
    assert not model_directories.familiar(tmp_path)
