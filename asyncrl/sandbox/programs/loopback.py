"""A program that reaches the gateway by TCP: a forwarder starts it inside the sandbox."""

from __future__ import annotations

from pathlib import Path

from asyncrl.sandbox.programs import forwarder
from asyncrl.sandbox.programs.languages import LANGUAGES, with_tools
from asyncrl.sandbox.programs.program import GATEWAY, Program

_NAME = ".forwarder.py"


def by_loopback(program: Program, port: int) -> Program:
    """The program, which reaches the gateway's socket at this port of 127.0.0.1. It needs a Python,
    two processes and about 0.1 s more."""
    command = ("python3", "-I", _NAME, str(port), GATEWAY, *program.argv)
    files = {_NAME: Path(forwarder.__file__).read_bytes()}
    return with_tools(LANGUAGES["python"], command, files, program)
