"""A temporary folder whose process was killed is removed by the next of its kind, and no other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from asyncrl import own_folder as module
from asyncrl.own_folder import own_folder

KILLED = """
import os, signal
from asyncrl.own_folder import own_folder
with own_folder("agent") as folder:
    (folder / "key").write_text("secret")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.processes
def test_the_folder_of_a_killed_process_is_removed_by_the_next_of_its_kind(temporary: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(temporary)}, check=False
    )
    assert ran.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    assert (left / "key").exists()
    elsewhere, file = temporary / "elsewhere", temporary / f"asyncrl-agent-{'1' * 16}"
    elsewhere.mkdir()
    file.touch()
    others = [f"asyncrl-agent-{'0' * 16}", "asyncrl-agent-of-a-user", "asyncrl-agent-0123"]
    (temporary / others[0]).symlink_to(elsewhere)
    for name in others[1:]:
        (temporary / name).mkdir()
    kept = {"elsewhere", file.name, *others}
    with own_folder("check") as another:
        assert left.exists()
    with own_folder("agent") as one, own_folder("agent") as other:
        assert not left.exists() and one.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in temporary.iterdir()} == {one.name, other.name, *kept}
    assert {path.name for path in temporary.iterdir()} == kept and not another.exists()


def test_a_new_folder_that_another_process_takes_for_a_left_one_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once before it is opened, and once before it is locked."""
    opened, taken = module._opened, list[Path]()

    def open_late(folder: Path) -> int:
        taken.append(folder)
        if len(taken) == 1:
            shutil.rmtree(folder)
        held = opened(folder)
        if len(taken) == 2:
            shutil.rmtree(folder)
        return held

    monkeypatch.setattr(module, "_opened", open_late)
    with own_folder("agent") as folder:
        assert folder.exists() and taken[2] == folder and len(set(taken)) == 3
        module.remove_left("agent")
        assert folder.exists()
    assert not list(temporary.iterdir())


def test_a_folder_of_another_user_is_left(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary / f"asyncrl-agent-{'0' * 16}"
    left.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        module.remove_left("agent")
        assert left.exists()
    module.remove_left("agent")
    assert not left.exists()
