"""The command line that `ps` shows of a forked process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_ARG_START, _ARG_END = 45, 46
"""Positions of these two addresses in /proc/PID/stat, counted from the field behind the name."""


def set_title(argv: Sequence[str]) -> None:
    """Show `argv` as the command line of this process, in /proc/PID/cmdline and so in `ps`.

    The text is written over the arguments that this process was started with, which is what the
    kernel shows, and is cut where those end: for more room, start the process with one more long
    argument. Does nothing if the kernel does not report the addresses.
    """
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    room = end - start
    if not start or room <= 0:
        return
    text = b"".join(os.fsencode(argument) + b"\0" for argument in argv)
    # The last byte stays 0: else the kernel also shows the environment, which lies behind it.
    ctypes.memmove(start, text[: room - 1].ljust(room, b"\0"), room)
