"""The copy of a run on another disk: what is in it, in what order, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import trio

from asyncrl.config import Config, ConfigError
from asyncrl.config.load import render
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.journal import Journal, read
from asyncrl.launch.run_copy import copy_run, keep_copy, refuse_unfit
from asyncrl.runtime.run_dir import JOURNAL, RUN_TOML
from asyncrl.training.checkpoint_index import SCALARS, CheckpointError, checkpoint_path, complete


def config_of(run: Path, copy: Path) -> Config:
    config = Config()
    of_run = msgspec.structs.replace(config.run, dir=str(run), copy=str(copy), copy_s=1000.0)
    return msgspec.structs.replace(config, run=of_run)


def checkpoint(run: Path, version: int, text: str = "") -> None:
    path = checkpoint_path(run, version)
    path.mkdir(parents=True, exist_ok=True)
    (path / SCALARS).write_text(text)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_TOML).write_text("")
    return tmp_path / "run"


async def test_a_copy_of_a_live_journal_holds_what_was_committed(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with Journal.open(run / JOURNAL, commit_ms=0) as log:
        for number in range(3):
            log.append(e.LateTokens(number))
            await log.flush()
            (run / "code").mkdir(exist_ok=True)
            (run / "code" / "reward.py").write_text(f"NUMBER = {number}\n")
            copy_run(run, copy)
            assert (copy / "code" / "reward.py").read_text() == f"NUMBER = {number}\n"
            assert [*read(copy / JOURNAL)] == [*read(run / JOURNAL)]
            assert len([*read(copy / JOURNAL)]) == number + 1
    assert sorted(path.name for path in copy.iterdir()) == sorted([JOURNAL, RUN_TOML, "code"])


async def test_checkpoints_come_and_go_with_those_of_the_run(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with Journal.open(run / JOURNAL, commit_ms=0):
        checkpoint(run, 1)
        checkpoint(run, 2, "first")
        copy_run(run, copy)
        assert [each.version for each in complete(copy)] == [1, 2]
        shutil.rmtree(checkpoint_path(run, 1))
        checkpoint(run, 2, "made again")
        checkpoint(run, 3)
        copy_run(run, copy)
    assert [each.version for each in complete(copy)] == [2, 3]
    assert (checkpoint_path(copy, 2) / SCALARS).read_text() == "made again"


async def test_a_journal_gets_its_name_only_where_a_checkpoint_of_it_is_there(
    run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    async with Journal.open(run / JOURNAL, commit_ms=0) as log:
        log.append(e.LateTokens(1))
        await log.flush()
        copy_run(run, copy)
        log.keep(1, Experience())
        log.compact(1)
        log.append(e.LateTokens(2))
        await log.flush()
        with pytest.raises(CheckpointError):
            copy_run(run, copy)
    assert [number for number, _ in read(copy / JOURNAL)] == [1]


async def test_a_last_copy_is_made_when_the_run_is_over_and_a_failure_is_said(
    run: Path, tmp_path: Path
) -> None:
    over, notes = trio.Event(), list[str]()
    over.set()
    async with Journal.open(run / JOURNAL, commit_ms=0):
        await keep_copy(config_of(run, tmp_path / "copy"), over, notes.append, 60)
        assert (tmp_path / "copy" / JOURNAL).exists() and not notes
        (tmp_path / "file").write_text("")
        await keep_copy(config_of(run, tmp_path / "file"), over, notes.append, 60)
    assert len(notes) == 1 and "was not copied" in notes[0]


def test_what_cannot_be_the_copy_is_refused(run: Path, tmp_path: Path) -> None:
    for copy in (run, run / "copy", tmp_path):
        with pytest.raises(ConfigError, match="one contains the other"):
            refuse_unfit(config_of(run, copy), run)
    other = tmp_path / "other"
    other.mkdir()
    refuse_unfit(config_of(run, other), None)
    (other / RUN_TOML).write_text(render(config_of(run, other)))
    refuse_unfit(config_of(run, other), run)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="a link to a directory that does not exist"):
        refuse_unfit(config_of(run, tmp_path / "link"), None)
    for config, resume in (
        (config_of(run, other), None),
        (config_of(tmp_path / "another", other), tmp_path / "another"),
    ):
        with pytest.raises(ConfigError, match="not empty"):
            refuse_unfit(config, resume)
