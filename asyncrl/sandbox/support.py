"""Kinds of sandboxes, and the support of this machine for them.

`strict` isolates a judging process from everything but the answer (`zygote.py`). `process` is a
process that can be killed, with an environment of its own (`forks.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import msgspec

from asyncrl.sandbox.environment import allowed

PROBE_S = 60.0
"""Seconds that a trial of a sandbox may take; a tenth of one is usual."""


class Support(msgspec.Struct, frozen=True):
    """`missing` says why this machine does not have the sandbox `strict`, "" if it does;
    `landlock` is the version that its kernel has, 0 for none."""

    missing: str
    landlock: int

    def encode(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


@cache
def support() -> Support:
    """Test what this machine supports, once in a process."""
    if sys.platform != "linux":
        return Support("it is made of Linux's namespaces", 0)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "asyncrl.sandbox.probe"],
            env=allowed(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=Support)
    except (subprocess.TimeoutExpired, msgspec.DecodeError):
        return Support("the attempt to make one failed", 0)
