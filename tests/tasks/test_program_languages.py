"""Languages of the verifier `run`, each by a right program, a wrong one and one that hangs (as in
Agnostics, arXiv 2508.04865)."""

from __future__ import annotations

import pytest
from program_support import needs_programs

from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.languages import no_tool
from asyncrl.tasks.program_cases import CasesVerifier

SUMS = {
    "fortran": "integer :: a, b\nread *, a, b\nprint '(i0)', a + b\nend",
    "julia": "a, b = parse.(Int, split(readline()))\nprintln(a + b)",
    "lua": 'local a, b = io.read("n", "n")\nprint(a + b)',
    "ocaml": 'let () = Scanf.scanf " %d %d" (fun a b -> Printf.printf "%d\\n" (a + b))',
    "r": 'x <- scan(file("stdin"), quiet = TRUE)\ncat(x[1] + x[2], "\\n", sep = "")',
}
"""Programs that print the sum of two numbers."""
HANGS = {
    "fortran": "do while (.true.)\nend do\nend",
    "julia": "while true\nend",
    "lua": "while true do end",
    "ocaml": "let () = while true do () done",
    "r": "repeat {}",
}
CASES = [{"input": f"{a} {b}\n", "output": str(a + b)} for a, b in ((1, 2), (-7, 3))]


@needs_programs
@pytest.mark.processes
@pytest.mark.parametrize("name", SUMS)
def test_a_right_a_wrong_and_a_hanging_program(name: str) -> None:
    if problem := no_tool(name):
        pytest.skip(problem)
    verifier = CasesVerifier(Bubblewrap(), 600.0, all_or_nothing=True)
    line = {"language": name, "cases": CASES, "seconds": 120.0}
    right = f"It is\n```{name}\n{SUMS[name]}\n```"
    assert verifier(right, line) == 1.0
    assert verifier(SUMS[name].replace("+", "-"), line) == 0.0
    assert verifier(HANGS[name], {**line, "cases": CASES[:1], "seconds": 0.5}) == 0.0
