"""A checkpoint is complete or not there, readable by anybody, and training goes on from it as if
nothing had happened."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from some_values import some
from training_world import CONFIGS, build, micro_batch, rollouts
from transformers import AutoModelForCausalLM

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.training import checkpoint_io
from asyncrl.training.checkpoint_index import (
    Checkpoint,
    CheckpointError,
    checkpoint_path,
    complete,
    latest,
    scalars,
)
from asyncrl.training.checkpoint_io import export, restore, save, take, write
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model
from asyncrl.training.staging import Staging

TRAIN = TrainConfig(lr=1e-2, lr_warmup_steps=2, lr_schedule="cosine", steps=8, weight_decay=0.1)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "initial"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "notes.txt").write_text("not a tokenizer's")
    return folder


def fresh(name: str = "qwen3", dtype: torch.dtype = torch.float32) -> Learner:
    return Learner(build(name, dtype), TRAIN, StalenessConfig(), 1.0)


def train(learner: Learner, steps: int) -> None:
    for _ in range(steps):
        every = rollouts(build("llama"), seed=learner.version, count=5)
        learner.accumulate(*micro_batch(every, every, learner.version))
        learner.step()


def state(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in learner.model.named_parameters()}


@pytest.mark.parametrize("name", some(CONFIGS))
@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.float32]))
def test_resumed_training_gives_the_weights_of_training_that_was_never_interrupted(
    name: str, dtype: torch.dtype, tmp_path: Path, tokenizer: Path
) -> None:
    """Qwen3 and GPT-2 here have tied weights."""
    learner = fresh(name, dtype)
    train(learner, 3)
    path = save(tmp_path / "run", learner, 41, tokenizer)
    drawn = torch.rand(3)
    train(learner, 3)

    torch.manual_seed(99)
    resumed = Learner(load_model(path, dtype), TRAIN, StalenessConfig(), 1.0)
    found = restore(path, resumed)
    assert (found.version, found.cursor) == (3, 41) and found == scalars(path)
    assert torch.equal(torch.rand(3), drawn)
    train(resumed, 3)
    assert resumed.version == learner.version == 6
    for parameter, value in state(learner).items():
        assert torch.equal(state(resumed)[parameter], value), parameter


def test_before_the_first_step_there_is_no_optimizer_state(tmp_path: Path, tokenizer: Path) -> None:
    path = save(tmp_path, fresh(), 0, tokenizer)
    assert path == checkpoint_path(tmp_path, 0)
    assert restore(path, fresh()).cursor == 0


def test_is_a_hugging_face_directory_without_pickles(tmp_path: Path, tokenizer: Path) -> None:
    learner = fresh()
    train(learner, 1)
    path = save(tmp_path, learner, 7, tokenizer)
    assert path.name == "step-000001" and path.parent.name == "checkpoints"
    names = {file.name for file in path.iterdir()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
        "trainer.json",
        "trainer.safetensors",
    } <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".jinja"}
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(
        AutoModelForCausalLM.from_pretrained(path)(ids).logits, learner.model(ids).logits
    )


def test_export_is_the_model_alone_and_replaces(tmp_path: Path, tokenizer: Path) -> None:
    learner = fresh()
    export(tmp_path / "model", learner.model, tokenizer)
    train(learner, 1)
    path = export(tmp_path / "model", learner.model, tokenizer)
    assert {file.name for file in path.iterdir()} & {
        "trainer.json",
        "trainer.safetensors",
        "tokenizer.json",
    } == {"tokenizer.json"}
    assert all(
        torch.equal(p, q)
        for p, q in zip(load_model(path).parameters(), learner.model.parameters(), strict=True)
    )
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_keeps_the_newest(tmp_path: Path, tokenizer: Path) -> None:
    learner = fresh()
    for version in (5, 999_999, 1_000_000, 1_000_001):
        learner.version = version
        save(tmp_path, learner, version, tokenizer, keep=2)
    assert [found.path.name for found in complete(tmp_path)] == ["step-1000000", "step-1000001"]
    assert latest(tmp_path) == checkpoint_path(tmp_path, 1_000_001)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_an_old_checkpoint_that_cannot_be_deleted_harms_no_later_one(
    tmp_path: Path,
    tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    learner = fresh()

    def kept(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for version in range(1, 5):
        learner.version = version
        monkeypatch.setattr(checkpoint_io.shutil, "rmtree", kept)
        assert save(tmp_path, learner, version, tokenizer, keep=2) == checkpoint_path(
            tmp_path, version
        )
        monkeypatch.undo()
    assert [found.path.name for found in complete(tmp_path)] == ["step-000003", "step-000004"]
    said = [record.getMessage() for record in caplog.records]
    assert any("step-000001 could not be deleted" in sentence for sentence in said)
    assert restore(checkpoint_path(tmp_path, 4), fresh()).version == 4


def test_the_same_version_again_replaces(tmp_path: Path, tokenizer: Path) -> None:
    learner = fresh()
    save(tmp_path, learner, 1, tokenizer)
    path = save(tmp_path, learner, 2, tokenizer)
    assert scalars(path).cursor == 2 and complete(tmp_path) == [Checkpoint(path, 0)]


@pytest.mark.parametrize("moment", ["write_tensors", "write_state", "write_rest", "_sync"])
def test_what_is_not_complete_is_never_seen(
    moment: str, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = fresh()
    first = save(tmp_path, learner, 1, tokenizer)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_io, moment, full)
    learner.version = 1
    with pytest.raises(
        CheckpointError, match=r"step-000001 cannot be written: .*No space left on device"
    ):
        save(tmp_path, learner, 2, tokenizer)
    monkeypatch.undo()
    assert complete(tmp_path) == [Checkpoint(first, 0)] and latest(tmp_path) == first
    assert restore(first, fresh()).cursor == 1


def test_a_run_directory_that_was_removed_is_not_made_again(
    tmp_path: Path, tokenizer: Path
) -> None:
    """A run went on in one without a journal, and its last line said how to resume it."""
    staged = take(fresh(), 1, Staging())
    with pytest.raises(CheckpointError, match="put back the directory that is gone"):
        write(tmp_path / "removed", staged, tokenizer)
    assert not (tmp_path / "removed").exists()


def test_what_a_killed_writer_left_is_not_seen_and_goes_with_the_next(
    tmp_path: Path, tokenizer: Path
) -> None:
    learner = fresh()
    left = tmp_path / "checkpoints" / ".partial-step-000009"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert latest(tmp_path) is None
    save(tmp_path, learner, 1, tokenizer)
    assert not left.exists() and latest(tmp_path) == checkpoint_path(tmp_path, 0)


def test_no_run_no_checkpoint(tmp_path: Path) -> None:
    assert latest(tmp_path / "nothing") is None and complete(tmp_path) == []


def test_broken_ones_say_so_and_change_nothing(tmp_path: Path, tokenizer: Path) -> None:
    learner = fresh()
    train(learner, 2)
    good = save(tmp_path, learner, 1, tokenizer)

    def broken(name: str, content: bytes | None) -> Path:
        path = tmp_path / "broken"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(good, path)
        if content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content)
        return path

    tensors = (good / "trainer.safetensors").read_bytes()
    victim = fresh()
    for name, content in [
        ("trainer.json", None),
        ("trainer.json", b"{"),
        ("trainer.safetensors", None),
        ("trainer.safetensors", tensors[:-9]),
    ]:
        with pytest.raises(
            CheckpointError,
            match=f"training cannot resume from .*broken, because {name} cannot be read",
        ):
            restore(broken(name, content), victim)
    with pytest.raises(CheckpointError, match="is of another model"):
        restore(good, fresh("llama"))
    assert victim.version == 0 and not victim.optimizer.state


def test_scalars_are_plain_json(tmp_path: Path, tokenizer: Path) -> None:
    path = save(tmp_path, fresh(), 12, tokenizer)
    found = msgspec.json.decode((path / "trainer.json").read_bytes())
    assert (found["version"], found["cursor"]) == (0, 12)
    assert set(found["files"]) == {file.name for file in path.iterdir()} - {"trainer.json"}


@pytest.mark.parametrize(
    "name", ["model.safetensors", "trainer.safetensors", "config.json", "trainer.json"]
)
@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_checkpoint_is_known_and_put_aside(
    name: str, how: str, tmp_path: Path, tokenizer: Path
) -> None:
    path = save(tmp_path, fresh(), 12, tokenizer)
    [checkpoint_io] = complete(tmp_path)
    checkpoint_io.verify()
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (path / name).unlink()
    if how != "gone":
        (path / name).write_bytes(content[: len(content) // 3] if how == "cut" else content)
    with pytest.raises(CheckpointError, match=name):
        checkpoint_io.verify()
    checkpoint_io.set_aside()
    assert complete(tmp_path) == [] and latest(tmp_path) is None


@pytest.mark.parametrize("name", ["/dev/zero", "../step-000000/config.json", "..", ""])
def test_a_checkpoint_cannot_name_a_file_elsewhere(
    name: str, tmp_path: Path, tokenizer: Path
) -> None:
    path = save(tmp_path, fresh(), 12, tokenizer)
    found = scalars(path)
    (path / "trainer.json").write_bytes(
        msgspec.json.encode(
            msgspec.structs.replace(found, files={name: found.files["config.json"]})
        )
    )
    with pytest.raises(CheckpointError, match="elsewhere"):
        complete(tmp_path)[0].verify()
