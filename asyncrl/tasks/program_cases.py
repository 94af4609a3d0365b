"""The verifier `run`: an answer is a program, judged by what it prints for given inputs.

    {"prompt": "…", "language": "python", "cases": [{"input": "2 3\\n", "output": "5"}]}

or as other data sets have it (`program_forms.py`).

The program is the answer's last fenced block, or the whole answer if it has none. It is built
once, and run for each case, every time in a fresh sandbox (`asyncrl.sandbox.programs`). A case is
passed if the program ends by itself, without an error, within `seconds` of the line (5 unless
set), and prints the expected output; white space at the ends of a line and empty lines at the end
do not matter. The reward is the share of cases that are passed.

The judge executes nothing of the answer, and shows a program its own text and one input: neither
the expected outputs nor the other cases are in its sandbox. So no program can read or write its
verdict.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from asyncrl.sandbox.programs.languages import build_of, no_tool, program_of
from asyncrl.sandbox.programs.program import Program
from asyncrl.sandbox.programs.runner import Sandbox, run
from asyncrl.tasks.program_forms import read_program_line

SHARE = 0.9
"""Share of `task.verdict_s` that the programs of an answer have together."""
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*$", re.MULTILINE)


class ProgramCase(msgspec.Struct, frozen=True):
    """An input, and the output that is expected for it.

    >>> ProgramCase("1 2", "3").output
    '3'
    """

    input: str
    output: str


class ProgramLine(msgspec.Struct, frozen=True):
    """A line whose verifier is `run`.

    >>> program_line({"prompt": "…", "cases": [{"input": "", "output": "1"}]}).seconds
    5.0
    """

    language: str
    cases: Annotated[list[ProgramCase], Meta(min_length=1)]
    seconds: Annotated[float, Meta(gt=0)] = 5.0


def program_line(entry: Mapping[str, Any]) -> ProgramLine:
    """The words of a line on programs, in any of the known forms. Raises LookupError."""
    try:
        return msgspec.convert(read_program_line(entry), ProgramLine)
    except msgspec.ValidationError as error:
        raise LookupError(f"its verifier is `run`: {error}") from error


class CasesVerifier:
    """The verifier `run`. The programs of an answer have `verdict_s` seconds together, and a case
    that is not reached in that time fails. `all_or_nothing`: cases after the first failed one are
    not run.

    >>> from asyncrl.sandbox.programs.unconfined import Unconfined
    >>> line = {"language": "bash", "cases": [{"input": "1", "output": "2"}]}
    >>> CasesVerifier(Unconfined())("read n; echo $((n + 1))", line)
    1.0
    """

    def __init__(
        self, sandbox: Sandbox, verdict_s: float = 10.0, *, all_or_nothing: bool = False
    ) -> None:
        self._sandbox = sandbox
        self._seconds = SHARE * verdict_s
        self._all = all_or_nothing

    def language(self, entry: Mapping[str, Any]) -> str:
        """The language of a line. Raises LookupError if the line is not one for this verifier, and
        if this machine does not have the language."""
        language = program_line(entry).language
        if problem := no_tool(language):
            raise LookupError(f"its verifier is `run`, and {problem}")
        return language

    def __call__(self, answer: str, entry: Mapping[str, Any]) -> float:
        """Judge an answer. Raises ProgramError if a program could not be run, which is not a
        verdict."""
        line = program_line(entry)
        end = time.monotonic() + self._seconds
        source = code_of(answer).encode(errors="replace")
        template = Program(argv=())
        building = build_of(line.language, source, template)
        if building is not None:
            built = run(msgspec.structs.replace(building, seconds=self._seconds), self._sandbox)
            if not built.well:
                return 0.0
            source = built.stdout
        passed = 0
        for case in line.cases:
            left = min(line.seconds, end - time.monotonic())
            prepared = msgspec.structs.replace(template, stdin=case.input.encode(), seconds=left)
            if left > 0 and self._passes(program_of(line.language, source, prepared), case):
                passed += 1
            elif self._all:
                break
        return passed / len(line.cases)

    def _passes(self, program: Program, case: ProgramCase) -> bool:
        ran = run(program, self._sandbox)
        return ran.well and lines_of(ran.stdout) == lines_of(case.output.encode())


def code_of(answer: str) -> str:
    """The program of an answer: its last fenced block, up to the answer's end if it is not closed;
    the whole answer if there is none.

    >>> code_of("Try:\\n```python\\nprint(1)\\n```\\nor\\n```\\nprint(2)\\n```\\nDone.")
    'print(2)\\n'
    >>> code_of("print(3)")
    'print(3)'
    """
    block: str | None = None
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(answer):
        if opened is None:
            opened = fence
        elif fence[1].startswith(opened[1]):
            block, opened = answer[opened.end() + 1 : fence.start()], None
    if opened is not None:
        block = answer[opened.end() + 1 :]
    return answer if block is None else block


def lines_of(output: bytes) -> list[bytes]:
    """The lines of an output as they are compared.

    >>> lines_of(b" 1 2 \\r\\n3\\n\\n") == lines_of(b"1 2\\n3")
    True
    """
    lines = [line.strip() for line in output.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
