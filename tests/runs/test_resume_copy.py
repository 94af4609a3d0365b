"""A real run whose disk is lost, and which goes on from its copy."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import warm_process
from train_support import command, everything, resume, started, steps_done, train, wait_for

from asyncrl.explain import summary
from asyncrl.launch.stored_copy import StoredCopy
from asyncrl.object_store import StoreError
from asyncrl.runtime.run_dir import SUMMARY
from asyncrl.training.checkpoint_index import complete


@pytest.mark.explore
def test_a_run_whose_disk_is_lost_goes_on_from_its_copy(model: Path, tmp_path: Path) -> None:
    """Without `run.copy` set anew it is refused: it would be its own copy."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    settings = {"train__steps": 10_000, "train__checkpoint_every": 2}
    with started(command(model, run, run__copy=str(copy), run__copy_s=0.5, **settings)) as process:
        wait_for("a copy", lambda: steps_done(copy) >= 4 and complete(copy))
        everything(process, run)
    shutil.rmtree(run)
    copied = steps_done(copy)
    refused = train(resume(copy))
    assert refused.returncode == 2 and "run.copy is" in refused.stderr
    ended = train([*resume(copy), '--set=run.copy=""', f"--set=train.steps={copied + 2}"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = summary.read(copy / SUMMARY)
    assert told.balances() and steps_done(copy) == copied + 2


@pytest.mark.explore
def test_a_run_whose_disk_is_lost_goes_on_from_its_object_store(
    model: Path, tmp_path: Path
) -> None:
    """It goes on being copied there."""
    pytest.importorskip("obstore", reason="the extra store is not installed")
    run, again, url = tmp_path / "run", tmp_path / "again", (tmp_path / "store").as_uri()

    def copied() -> set[str]:
        try:
            found = StoredCopy(url).manifest()
        except StoreError:
            return set()
        return {name for name in found.files if name.startswith("checkpoints/")} if found else set()

    settings = {"train__steps": 10_000, "train__checkpoint_every": 2}
    with started(command(model, run, run__copy=url, run__copy_s=0.5, **settings)) as process:
        wait_for("a copy of a checkpoint", lambda: len(copied()) >= 2)
        everything(process, run)
    shutil.rmtree(run)
    fetched = warm_process.run(
        [sys.executable, "-m", "asyncrl.cli", "fetch", url, str(again)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"Go on with: asyncrl train --resume {again}\n" in fetched.stdout
    steps = steps_done(again)
    assert steps >= 2
    ended = train([*resume(again), f"--set=train.steps={steps + 2}"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert summary.read(again / SUMMARY).balances() and steps_done(again) == steps + 2
    assert any(f"step-{steps + 2:06d}/" in name for name in copied())
