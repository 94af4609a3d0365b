"""Parts of the tests of programs: a mark for those that only run where this machine can start the
sandbox `bwrap`, and a Python program."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.languages import program_of
from asyncrl.sandbox.programs.program import Program

needs_programs = pytest.mark.skipif(
    bool(Bubblewrap().missing()),
    reason=f"this machine does not have the sandbox bwrap: {Bubblewrap().missing()}",
)


def python(code: str, **more: Any) -> Program:
    """A program of this text; `more` changes it."""
    made = program_of("python", code.encode(), Program(argv=(), seconds=300.0))
    return msgspec.structs.replace(made, **more)
