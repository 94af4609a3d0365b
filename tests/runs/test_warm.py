"""That what is forked from the warm process (`tests/support/warm_process.py`) is as if it were
started: of real starts, `test_train.py` and `test_signals.py` have one each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm_process

pytestmark = pytest.mark.processes

MODULE = """
import os, signal, sys
print(os.getcwd(), os.environ["MINE"], sys.argv[1:], __name__)
print("error", file=sys.stderr)
if sys.argv[1:] == ["killed"]:
    os.kill(os.getpid(), signal.SIGTERM)
assert sys.argv[1:] != ["raises"]
sys.exit("words" if sys.argv[1:] == ["words"] else 3)
"""


@pytest.mark.parametrize("word", ["exits", "words", "killed", "raises"])
def test_it_is_as_if_it_were_started(word: str, tmp_path: Path) -> None:
    (tmp_path / "in_its_path.py").write_text(MODULE)
    env = os.environ | {"MINE": "x", "PYTHONPATH": str(tmp_path)}

    def said(run: Callable[..., Any]) -> tuple[int, str, list[str]]:
        argv = [sys.executable, "-m", "in_its_path", word]
        done = run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr.splitlines()[::-1][:1]

    assert said(warm_process.run) == said(subprocess.run)


def test_it_has_its_command_line_and_is_a_child_of_this_process(tmp_path: Path) -> None:
    (tmp_path / "it_waits.py").write_text("import signal\nprint(flush=True)\nsignal.pause()\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-m", "it_waits", "long"]
    with warm_process.Popen(argv, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) == os.getpid()
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").decode()
        assert shown.split("\0") == argv
        process.kill()
    assert process.returncode == -signal.SIGKILL


def test_a_hash_seed_of_its_own_is_a_real_start(tmp_path: Path) -> None:
    (tmp_path / "seeded.py").write_text("import sys\nprint(sys.flags.hash_randomization)\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": "0"}
    done = warm_process.run(
        [sys.executable, "-m", "seeded"], env=env, capture_output=True, text=True
    )
    assert done.stdout == "0\n"
