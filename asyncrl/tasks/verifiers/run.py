"""The response is a program, judged by what it prints (`asyncrl/tasks/program_cases.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.runner import Sandbox
from asyncrl.tasks.program_cases import CasesVerifier
from asyncrl.tasks.verifiers import BuiltIn


class ProgramRun(CasesVerifier, BuiltIn):
    """The share of a line's cases that the program passes; `CasesVerifier` has an example.

    >>> ProgramRun.kind
    'run'
    """

    kind: ClassVar[str] = "run"
    compares: ClassVar[bool] = False

    def __init__(
        self,
        sandbox: Sandbox | None = None,
        verdict_s: float = 10.0,
        *,
        all_or_nothing: bool = False,
    ) -> None:
        super().__init__(sandbox or Bubblewrap(), verdict_s, all_or_nothing=all_or_nothing)

    def check(self, line: Mapping[str, Any]) -> None:
        self.language(line)
