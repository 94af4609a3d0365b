"""Processes that a check starts because they import torch, which this process never does.
Invariant: an end that was not expected is put into words, and none is taken for a success.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl.escape import escaped
from asyncrl.own_folder import own_folder
from asyncrl.runtime.processes.process import environment, last_traceback, last_words

TIED = "asyncrl.runtime.processes.tied_module"
_FRAME = re.compile(r'^ +File "([^"]+)", line ([0-9]+)', re.MULTILINE)


def run_module(
    module: str, arguments: Sequence[str], deadline_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a module to its end, which is that of this thread at the latest. Raises
    subprocess.TimeoutExpired after `deadline_s`."""
    command = [sys.executable, "-m", TIED, module, *arguments]
    with own_folder("check") as folder:  # torch makes one for what it compiles
        own = environment(more={"TORCHINDUCTOR_CACHE_DIR": str(folder)})
        return subprocess.run(command, capture_output=True, timeout=deadline_s, env=own)


def ending(status: int, printed: bytes) -> str:
    """The end of a process that was not expected, in words: by its exit status, and by what it
    printed as its error.

    >>> trace = b'Traceback (most recent call last):\\n  File "/a/b.py", line 7, in f\\n'
    >>> ending(1, trace + b"KeyError: 'x'\\n")
    "KeyError: 'x' (b.py, line 7)"
    >>> ending(-9, b"")
    'signal 9 (Killed) ended it, as the system does when it is out of memory'
    """
    if status < 0:
        beyond = ", as the system does when it is out of memory" * (-status == signal.SIGKILL)
        return f"signal {-status} ({signal.strsignal(-status)}) ended it{beyond}"
    text = last_traceback(printed.decode(errors="replace"))
    if not text.strip():
        return f"it ended with exit status {status} and said nothing"
    frames = _FRAME.findall(text)
    where = f" ({Path(frames[-1][0]).name}, line {frames[-1][1]})" if frames else ""
    return escaped(last_words(text), 300) + where
