"""The last start of a run: when, where, by what command and which versions. The launcher writes it,
and pages and reports say it.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from asyncrl.explain.json_files import read_json, write_json

LENGTH = 4000
"""Characters of a command that are kept."""


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """A start `at` seconds since 1970, on `host`, by `command` (as a shell reads it), with these
    versions of `asyncrl` and `python`."""

    at: float
    host: str
    command: str
    asyncrl: str
    python: str


def run_start(arguments: Sequence[str], at: float) -> RunStart:
    """The start of this process's run, at seconds since 1970.

    >>> run_start(["asyncrl", "train", "my run.toml"], 1e9).command
    "asyncrl train 'my run.toml'"
    """
    return RunStart(
        at=at,
        host=platform.node(),
        command=shlex.join(arguments)[:LENGTH],
        asyncrl=version("asyncrl"),
        python=platform.python_version(),
    )


def write(start: RunStart, path: Path) -> None:
    """Write a start. Raises OSError."""
    write_json(start, path, forced=False)


def read(path: Path) -> RunStart:
    """Read what `write` wrote. Raises OSError and msgspec.DecodeError."""
    return read_json(path, RunStart)
