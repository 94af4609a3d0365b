"""A checkpoint is written from a copy, which stays as it is while training goes on; and a writer
that is killed at any moment leaves the checkpoints that were whole before."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Lock, Thread
from typing import Any

import pytest
import torch
from some_values import some
from training_world import CONFIGS, build, micro_batch, rollouts

from asyncrl.config.schema import LoraConfig, StalenessConfig, TrainConfig
from asyncrl.training import checkpoint_io, model_writing, stored_state
from asyncrl.training.adapters import add_adapters
from asyncrl.training.checkpoint_index import CheckpointError, complete, latest
from asyncrl.training.checkpoint_io import StagedCheckpoint, restore, save, take, write
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model
from asyncrl.training.ranks.rank import ALONE, Alone
from asyncrl.training.staging import Staging
from asyncrl.training.stored_state import StoredPart, read_state, whole_of

TRAIN = TrainConfig(lr=1e-2, lr_warmup_steps=2, steps=8, weight_decay=0.1, ema=0.9)
STALENESS = StalenessConfig(proximal="snapshot", max_lag=2)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "initial"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    return folder


def fresh(
    name: str = "qwen3", dtype: torch.dtype = torch.float32, lora: LoraConfig | None = None
) -> Learner:
    model = build(name, dtype)
    if lora:
        add_adapters(model, lora)
    return Learner(model, TRAIN, STALENESS, 1.0)


def train(learner: Learner, steps: int) -> None:
    for _ in range(steps):
        every = rollouts(build("llama"), seed=learner.version, count=5)
        learner.accumulate(*micro_batch(every, every, learner.version))
        learner.step()


def taken(learner: Learner, cursor: int, staging: Staging) -> StagedCheckpoint:
    return take(learner, cursor, staging)


def made(run: Path) -> Path:
    run.mkdir()
    return run


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)], ids=["whole", "adapters"])
@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("name", some(CONFIGS))
def test_what_is_written_is_the_state_at_the_copy_whatever_is_trained_meanwhile(
    name: str, dtype: torch.dtype, lora: LoraConfig | None, tmp_path: Path, tokenizer: Path
) -> None:
    """Of weights, moments, masters, the average and earlier versions, to the last bit."""
    learner, staging = fresh(name, dtype, lora), Staging()
    train(learner, 1)
    taken(learner, 1, staging)
    train(learner, 2)
    at_once = content(save(tmp_path / "at once", learner, 41, tokenizer))
    staged = taken(learner, 41, staging)
    train(learner, 2)
    torch.manual_seed(99)
    beside = content(write(made(tmp_path / "beside"), staged, tokenizer))
    assert beside == at_once
    train(learner, 1)
    later = content(write(made(tmp_path / "later"), taken(learner, 42, staging), tokenizer))
    weights = "adapter_model.safetensors" if lora else "model.safetensors"
    for file in (weights, "trainer.safetensors", "trainer.json"):
        assert later[file] != at_once[file]


def test_the_memory_of_a_copy_is_that_of_the_last_one(tmp_path: Path) -> None:
    learner, staging = fresh(), Staging()

    def places() -> set[int]:
        staged = taken(learner, 0, staging)
        assert staged.model is not None
        tensors = [part.tensor for part in staged.state.values()]
        tensors += [tensor for file in staged.model.files.values() for tensor in file.values()]
        return {tensor.data_ptr() for tensor in tensors}

    train(learner, 3)
    before = places()
    train(learner, 1)
    assert places() == before
    live = [*learner.model.parameters(), *learner.optimizer.state.values()]
    own = [t for each in live for t in (each.values() if isinstance(each, dict) else [each])]
    assert before.isdisjoint(tensor.data_ptr() for tensor in own)


def test_the_copy_has_what_the_model_says_of_generation(tmp_path: Path, tokenizer: Path) -> None:
    learner = fresh()
    said = learner.model.generation_config
    assert said is not None
    said.do_sample, said.top_k = True, 7
    path = save(tmp_path, learner, 0, tokenizer)
    assert json.loads((path / "generation_config.json").read_text())["top_k"] == 7


def test_large_models_are_written_as_shards_and_read(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_writing, "SHARD", 4000)
    learner = fresh()
    train(learner, 2)
    path = save(tmp_path, learner, 5, tokenizer)
    shards = {file.name for file in path.glob("model-*-of-*.safetensors")}
    index = json.loads((path / "model.safetensors.index.json").read_text())
    assert len(shards) > 1 and shards == set(index["weight_map"].values())
    [checkpoint] = complete(tmp_path)
    checkpoint.verify()
    other = Learner(load_model(path), TRAIN, STALENESS, 1.0)
    assert restore(path, other).cursor == 5
    for one, two in zip(learner.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)
    (path / sorted(shards)[0]).unlink()
    with pytest.raises(CheckpointError, match="model-00001-of"):
        checkpoint.verify()


PATIENCE_S = 30.0


class Killed(BaseException):
    """The process is gone: nothing after this runs."""


MOMENTS: list[tuple[Any, str]] = [
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "write_bytes"),
    (shutil, "rmtree"),
    (shutil, "copyfile"),
    (model_writing, "save_file"),
    (stored_state, "save_file"),
    (checkpoint_io, "digested"),
    (os, "fsync"),
]
"""All that writing does to the disk, and more."""


class HalfRank(Alone):
    """One of two ranks that are threads of a process, each with half of the rows. One that is
    killed is lost for the other."""

    size, writers = 2, (0, 1)

    def __init__(self, index: int, said: list[bytes], together: Barrier) -> None:
        self.index, self._said, self._together = index, said, together

    def part(self, tensor: torch.Tensor, turn: int) -> StoredPart | None:
        if not tensor.dim():
            return None if self.index else StoredPart(tensor)
        half = -(-len(tensor) // 2)
        rows = tensor[half:] if self.index else tensor[:half]
        return StoredPart(rows, half * self.index, len(tensor)) if len(rows) else None

    def told(self, said: bytes) -> list[bytes]:
        self._said[self.index] = said
        self._together.wait(PATIENCE_S)
        every = list(self._said)
        self._together.wait(PATIENCE_S)
        return every


class CopyOfRanks:
    """A copy of a learner's state by so many ranks, and its writing by all of them."""

    def __init__(self, learner: Learner, cursor: int, count: int) -> None:
        self._count, self._said = count, [b""] * count
        self._together, alone, self._taken = Barrier(count), learner.rank, []
        for index in range(count):
            learner.rank = self._rank(index)
            self._taken.append(taken(learner, cursor, Staging()))
        learner.rank = alone

    def _rank(self, index: int) -> Alone:
        return ALONE if self._count == 1 else HalfRank(index, self._said, self._together)

    def write(self, run: Path, tokenizer: Path) -> Path:
        self._together.reset()
        paths, killed = dict[int, Path](), list[Killed]()

        def one(index: int) -> None:
            try:
                paths[index] = write(run, self._taken[index], tokenizer, self._rank(index))
            except BrokenBarrierError:
                pass  # the other was killed
            except Killed as error:
                killed.append(error)
                self._together.abort()

        threads = [Thread(target=one, args=[index]) for index in range(self._count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if killed:
            raise killed[0]
        return paths[0]


def killed_at(
    moment: int, after: bool, run: Callable[[], object], patch: pytest.MonkeyPatch
) -> bool:
    """Run until just before, or after, the moment of this number; False: there are not so many."""
    seen, turn = 0, Lock()

    def watched(inner: Callable[..., object]) -> Callable[..., object]:
        def call(*args: Any, **options: Any) -> object:
            nonlocal seen
            with turn:  # ranks are threads here
                mine, seen = seen, seen + 1
            if mine == moment and not after:
                raise Killed
            found = inner(*args, **options)
            if mine == moment:
                raise Killed
            return found

        return call

    with patch.context() as patched:
        for owner, name in MOMENTS:
            patched.setattr(owner, name, watched(getattr(owner, name)))
        try:
            run()
        except Killed:
            return True
    return False


@pytest.mark.explore
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_moment_of_a_save_a_run_goes_on_from_a_whole_checkpoint(
    after: bool, ranks: int, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are there (two are kept), and the writer of the next is killed. The newest that bears
    a checkpoint's name is the one before or the new one, is what was written, and the next life's
    save goes on from whatever was left."""
    learner = fresh()
    base = tmp_path / "base"
    for version in (1, 2):
        train(learner, 1)
        save(base, learner, version, tokenizer)
    train(learner, 1)
    staged = CopyOfRanks(learner, 3, ranks)
    known = {checkpoint.version: content(checkpoint.path) for checkpoint in complete(base)}
    known[3] = content(staged.write(made(tmp_path / "whole"), tokenizer))
    found, moment = list[int](), 0
    while True:
        run = tmp_path / f"run-{moment}"
        shutil.copytree(base, run)
        run_ends = killed_at(moment, after, lambda: staged.write(run, tokenizer), monkeypatch)  # noqa: B023
        newest = latest(run)
        assert newest is not None
        for checkpoint in complete(run):
            checkpoint.verify()
            assert content(checkpoint.path) == known[checkpoint.version]
        found.append(complete(run)[-1].version)
        assert staged.write(run, tokenizer) == complete(run)[-1].path
        assert [path.name for path in (run / "checkpoints").iterdir() if path.name[0] == "."] == []
        if not run_ends:
            break
        moment += 1
    assert moment > 15 and found == sorted(found) and set(found) == {2, 3}


def test_parts_of_two_ranks_are_one_state_and_a_missing_one_is_said(
    tmp_path: Path, tokenizer: Path
) -> None:
    learner = fresh(dtype=torch.bfloat16)
    train(learner, 2)
    whole = save(tmp_path / "whole", learner, 3, tokenizer)
    path = CopyOfRanks(learner, 3, 2).write(made(tmp_path / "parts"), tokenizer)
    files = {"model", "trainer"}
    for name in files:
        assert len(list(path.glob(f"{name}-0000?-of-00002.safetensors"))) == 2
    one, other = read_state(whole), read_state(path)
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(whole_of(tensor), whole_of(other.tensors[name])), name
    resumed = Learner(load_model(path, torch.bfloat16), TRAIN, STALENESS, 1.0)
    assert restore(path, resumed).cursor == 3
    for mine, theirs in zip(learner.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    (path / "trainer-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="a file of its state is missing, or of another"):
        restore(path, resumed)


def test_a_checkpoint_has_its_name_once_all_of_it_is_on_the_disk(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is written after it was brought to the disk would show here."""
    synced, sizes = dict[int, int](), dict[str, int]()
    sync, rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        found = os.fstat(descriptor)
        synced[found.st_ino] = found.st_mtime_ns

    def named(path: Path, to: Path) -> Path:
        if path.name.startswith(".partial-step"):
            for file in [*path.iterdir(), path]:
                found = file.stat()
                assert synced[found.st_ino] == found.st_mtime_ns, file
                sizes[file.name] = found.st_size
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", named)
    path = save(tmp_path, fresh(), 0, tokenizer)
    assert set(content(path)) < set(sizes)
    assert path.parent.stat().st_ino in synced
