"""Names of sandboxes, images and files in them. Pure.

A sandbox's name says whose it is: `asyncrl-RUN-ATTEMPT-N`, with the run's id, the attempt's session
and a number. So it is known before it is opened, and can be ended by whoever knows the run.
"""

from __future__ import annotations

import hashlib
import re
import socket
from pathlib import Path

LABEL = "asyncrl.run"
"""The label, or a provider's metadata, that has the run's id."""
NAME = "asyncrl.name"
"""A provider's metadata that has the sandbox's name."""
_IMAGE = re.compile(
    r"[a-z0-9]([a-z0-9._-]|:[0-9]+(?=/)|/(?=[a-z0-9]))*"  # registry, port, path
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_IMAGE_CHARACTERS = 400
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def run_id(run: Path) -> str:
    """Twelve hexadecimal digits of a run's directory on this machine: the same in all its lives."""
    told = f"{socket.gethostname()}\0{run.resolve()}".encode()
    return hashlib.blake2b(told, digest_size=6).hexdigest()


def box_name(run: str, attempt: str, number: int) -> str:
    """The name of an attempt's sandbox. Raises ValueError for parts that are no names.

    >>> box_name("0a1b2c3d4e5f", "r12-1", 0)
    'asyncrl-0a1b2c3d4e5f-r12-1-0'
    """
    if not _PART.fullmatch(run) or not _PART.fullmatch(attempt):
        raise ValueError(f"{run[:80]!r} and {attempt[:80]!r} name no attempt of a run")
    return f"asyncrl-{run}-{attempt}-{number}"


def wrong_image(image: object) -> str:
    """The reason why this is no name of an image; "" if it is one.

    >>> [wrong_image(name) for name in ("python:3.12", "swebench/sweb.eval.x86_64.a_1776_b:latest")]
    ['', '']
    >>> wrong_image("--privileged")
    "'--privileged' is no name of an image, as ubuntu:24.04 or registry.io/team/task@sha256:…"
    """
    if isinstance(image, str) and len(image) <= _IMAGE_CHARACTERS and _IMAGE.fullmatch(image):
        return ""
    shown = repr(image[:80] if isinstance(image, str) else image)[:100]
    return f"{shown} is no name of an image, as ubuntu:24.04 or registry.io/team/task@sha256:…"


def wrong_path(path: object) -> str:
    """The reason why this is no path of a file in a sandbox; "" if it is one.

    >>> wrong_path("src/a.py"), wrong_path("-f")
    ('', "'-f' is no path of a file in a sandbox")
    """
    right = isinstance(path, str) and 0 < len(path) <= 4096 and "\0" not in path
    if right and isinstance(path, str) and not path.startswith("-") and not path.endswith("/"):
        return ""
    return f"{path!r:.100} is no path of a file in a sandbox"
