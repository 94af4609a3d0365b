"""A process's log: all that it says, one line a record, tracebacks included."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import logging, sys, threading, warnings
from pathlib import Path
from asyncrl.runtime import logs

logs.start(Path(sys.argv[1]), "rollout", 3, "info")
logging.getLogger("asyncrl.engine").info("ready with %d slots", 64)
logging.debug("not said")
warnings.warn("old thing")
thread = threading.Thread(target=lambda: [][1])
thread.start(); thread.join()
{}["gone"]
"""


def run(tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stderr == ""
    return (tmp_path / "logs" / "rollout-3.log").read_text()


def test_everything_is_in_the_actors_file(tmp_path: Path) -> None:
    text = run(tmp_path)
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} INFO    rollout-3 asyncrl\.engine: ready with 64 "
        r"slots\n",
        text,
    )
    assert "old thing" in text and "not said" not in text
    assert "IndexError: list index out of range" in text and text.rstrip().endswith(
        "KeyError: 'gone'"
    )


def test_a_restarted_actor_appends(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert run(tmp_path).startswith(first)
