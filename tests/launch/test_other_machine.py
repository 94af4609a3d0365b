"""A run on machines that are not here: what it needs there, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.config import Config, ConfigError, load
from asyncrl.launch import other_machine
from asyncrl.launch.other_machine import OtherMachine, read_machine, rows_for
from asyncrl.launch.trainer_memory import DRIVER_BYTES
from asyncrl.training.memory_parts import MemoryParts, PredictedMemory

TWO = OtherMachine(gpus=8, gpu="h100", machines=2)
GIB = 2**30


def run(tmp_path: Path, *sets: str) -> Config:
    """A run of two servers of two ranks, and a trainer on the other GPUs."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    servers = 'engine.kind=sglang,engine.sglang.launch=["server"],engine.sglang.tensor_parallel=2'
    return load(
        None,
        [
            *servers.split(","),
            "rollout.actors=2",
            "engine.sglang.device=cuda",
            "train.device=cuda",
            "publication.path=staged",
            f"model.path={tmp_path}",
            *sets,
        ],
        {},
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits by which the trainer's memory was predicted; a rank needs 20 GiB."""
    limits: list[int] = []

    def predicted(config: Config, limit: int) -> PredictedMemory:
        limits.append(limit)
        return PredictedMemory(MemoryParts(5 * GIB, 0, 5 * GIB, 5 * GIB, 0, 4 * GIB, GIB, GIB))

    monkeypatch.setattr("asyncrl.launch.trainer_memory.predicted", predicted)
    monkeypatch.setattr("asyncrl.launch.trainer_memory.model_bound", lambda config: None)
    monkeypatch.setattr(other_machine, "sent_bytes", lambda config: 60 * GIB)
    return limits


def test_gpus_and_memory_of_each_rank_are_told(tmp_path: Path, asked: list[int]) -> None:
    rows = {row[0]: row[1:] for row in rows_for(run(tmp_path), TWO)}
    assert rows["cluster"][0].startswith("2 machines, each with 8 × h100")
    assert rows["machine 1"][0] == "8 of 8 GPUs" and "server-1" in rows["machine 1"][1]
    assert asked == [80 * 10**9 - DRIVER_BYTES], "that of an H100, whatever is here"
    assert "ranks" in rows["trainer memory"][1] and rows["server memory"][0] == "30.0 GiB"
    assert rows["note"] == ("GPUs", "8 of them do nothing")


@pytest.mark.parametrize(
    ("sets", "machine", "said"),
    [
        (["train.ranks=8"], TWO, "needs .* GPUs on its first machine"),
        ([], OtherMachine(gpus=8, gpu_gb=30.0), "raise the servers' tensor_parallel"),
        ([], OtherMachine(gpus=0), "GPUs on its first machine"),
    ],
)
def test_what_cannot_run_there_is_refused(
    tmp_path: Path, asked: list[int], sets: list[str], machine: OtherMachine, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        rows_for(run(tmp_path, *sets), machine)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('gpus = 8\ngpu = "h1000"\n', "set it to one of h100"),
        ("gpus = -1\n", "does not describe a machine"),
        ("speed = 3\n", "does not describe a machine"),
        ("gpus = [", "does not describe a machine"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_machine(path)
    path.write_text('gpus = 8\ngpu = "h100"\nmachines = 2\n')
    assert read_machine(path) == TWO
    with pytest.raises(ConfigError, match="cannot be read"):
        read_machine(tmp_path / "none.toml")
