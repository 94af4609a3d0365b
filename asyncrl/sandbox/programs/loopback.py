"""A program that speaks TCP and is to reach the gateway: it is begun by a forwarder, inside."""

from __future__ import annotations

from pathlib import Path

from asyncrl.sandbox.programs import forwarder
from asyncrl.sandbox.programs.languages import LANGUAGES, with_tools
from asyncrl.sandbox.programs.program import GATEWAY, Program

_NAME = ".forwarder.py"


def by_loopback(program: Program, port: int) -> Program:
    """The program, to which the gateway's socket is this port of 127.0.0.1. It takes a Python, two
    processes and some 0.1 s more."""
    command = ("python3", "-I", _NAME, str(port), GATEWAY, *program.argv)
    files = {_NAME: Path(forwarder.__file__).read_bytes()}
    return with_tools(LANGUAGES["python"], command, files, program)
