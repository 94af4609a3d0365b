"""Starts of `python -m MODULE` in tests by a fork of one process that has imported the product.

    worker of pytest ── one connection a start ──▶ warm process ── fork ──▶ middle ── fork ──▶ child
                                                   (warm_process.py)

A command of asyncrl then costs a twentieth of a second where it would import for one, and a run
eight core seconds less, because its fork server is there too. The child is one of this process
(it adopts what the middle process leaves), and `Popen` is a `subprocess.Popen` in all but its
start. What Python reads at its start alone (`FIXED`) must be as it was there; else it is started
as ever. So is whatever the caller starts by `subprocess`: some tests of tests/runs do, so that
real starts are tested too.

    python -I -S warm.py ADDRESS MODULE WORDS …

starts it likewise from a shell, and ends as it ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

FIXED = ("PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONHOME", "LC_ALL", "LANG")
"""Variables that Python reads at its start alone, or before what the product imports."""
REQUEST_BYTES = 2**17
_SET_CHILD_SUBREAPER = 36


def fork(address: str, module: str, words: Sequence[str], **more: Any) -> int:
    """Have the warm process at `address` fork `python -m module words`; returns the process id of
    what is a child of this process then. `more` are `environment`, `folder`, `cores`, the file
    of a `network` namespace, and the descriptors of its `streams` and others after them; this
    process's own where left out."""
    with _adopting():
        return _asked(address, module, words, adopts=True, **more)


def run(address: str, module: str, words: Sequence[str]) -> int:
    """Have it fork that with this process's environment and streams, and return the exit code."""
    return _asked(address, module, words, adopts=False)


def _asked(address: str, module: str, words: Sequence[str], adopts: bool, **more: Any) -> int:
    os.umask(mask := os.umask(0o077))
    request = {
        "module": module,
        "umask": mask,
        "words": list(words),
        "environment": more.get("environment") or dict(os.environ),
        "folder": str(more.get("folder") or os.getcwd()),  # noqa: PTH109 as light as can be
        "cores": sorted(more.get("cores") or os.sched_getaffinity(0)),
        "network": more.get("network"),
        "adopts": adopts,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{address}")
        text = json.dumps(request).encode()
        socket.send_fds(connection, [text], more.get("streams") or [0, 1, 2])
        if not (said := connection.recv(REQUEST_BYTES)):
            raise ConnectionError("the warm process has ended")
    return int(said)


@contextmanager
def _adopting() -> Iterator[None]:
    """Have orphans of this process's descendants become its children, for a fork alone."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2], sys.argv[3:]) & 0xFF)
