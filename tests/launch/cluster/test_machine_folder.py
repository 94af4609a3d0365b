"""A machine's own directory, whose agent may be killed: the next one removes it, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from asyncrl.launch.cluster.machine_folder import machine_folder

KILLED = """
import os, signal
from asyncrl.launch.cluster.machine_folder import machine_folder
with machine_folder() as folder:
    (folder / "key").write_text("secret")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.processes
def test_the_directory_of_a_killed_agent_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False
    )
    assert ran.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert (left / "key").exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    (elsewhere / "lock").touch()
    (tmp_path / "asyncrl-agent-link").symlink_to(elsewhere)
    (tmp_path / "asyncrl-agent-open").mkdir(0o755)
    (tmp_path / "asyncrl-agent-open" / "lock").touch()
    with machine_folder() as one, machine_folder() as other:
        assert not left.exists() and one.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in tmp_path.iterdir()} == {
            *(one.name, other.name),
            *("elsewhere", "asyncrl-agent-link", "asyncrl-agent-open"),
        }
    assert not one.exists() and not other.exists() and (elsewhere / "lock").exists()
