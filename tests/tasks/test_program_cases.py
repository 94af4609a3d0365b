"""The verifier `run`: answers are programs, judged by what they print for given inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from program_support import needs_programs

from asyncrl.actors.reward_actor import open_verifiers
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import NoVerdict, Scored, Verdict
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.sandbox.programs import bubblewrap
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.program import Program, ProgramError, Ran
from asyncrl.tasks import Task, TaskError, open_task, program_cases
from asyncrl.tasks.program_cases import (
    SHARE,
    CasesVerifier,
    ProgramCase,
    code_of,
    lines_of,
    program_line,
)

ADD = {
    "language": "python",
    "cases": [{"input": f"{a} {b}\n", "output": str(a + b)} for a, b in ((1, 2), (3, 4), (0, 0))],
}
RIGHT = "a, b = map(int, input().split())\nprint(a + b)"
Opened = Callable[..., Task]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Opens a task of lines, each of which is `ADD` but for what is given."""

    def opened(*lines: dict[str, Any], **settings: Any) -> Task:
        return open_task(task_of(tmp_path, *lines, **settings), 0)

    return opened


def task_of(folder: Path, *lines: dict[str, Any], **settings: Any) -> TaskConfig:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": "add", **ADD, **line}) + "\n" for line in lines))
    defaults = {"verifier": "run", "eval_size": 0, "verdict_s": 300.0, "sandbox": "process"}
    return TaskConfig(name="jsonl", path=str(path), **{**defaults, **settings})


# ------------------------------------------------------------------------------------ pure parts


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("print(1)", "print(1)"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("a\n```py\nx\n```\nb\n```python\ny\nz\n```\nc", "y\nz\n"),
        ("~~~\na\n```\nb\n~~~", "a\n```\nb\n"),
        ("````\n```\na\n```\n````", "```\na\n```\n"),
        ("```\nx\n```\n```python\ncut", "cut"),
        ("  ```\nx\n  ```", "x\n"),
        ("```", ""),
        ("text with ``` inside of a line", "text with ``` inside of a line"),
        ("", ""),
    ],
)
def test_the_program_is_the_last_fenced_block(answer: str, code: str) -> None:
    assert code_of(answer) == code


@given(st.text(alphabet="a`~ \n", max_size=60))
def test_any_answer_has_a_program_that_is_a_part_of_it(answer: str) -> None:
    assert code_of(answer) in answer


@pytest.mark.parametrize(
    ("said", "expected", "same"),
    [
        (b"1\n2", b"1\n2\n", True),
        (b" 1 \r\n2\t\n\n\n", b"1\n2", True),
        (b"", b"\n", True),
        (b"\n1", b"1", False),
        (b"1  2", b"1 2", False),
        (b"1\n\n2", b"1\n2", False),
        (b"1", b"10", False),
    ],
)
def test_outputs_are_compared_line_by_line(said: bytes, expected: bytes, same: bool) -> None:
    assert (lines_of(said) == lines_of(expected)) == same


# ------------------------------------------------------------------------------------- the budget


class Timed:
    """Runs programs in seconds of its own: the first builds, each of the others is a case. One that
    is not done within its time is killed then."""

    def __init__(self, seconds: list[float]) -> None:
        self.now, self.left, self.budgets = 100.0, list(seconds), list[float]()

    def monotonic(self) -> float:
        return self.now

    def run(self, program: Program, sandbox: object) -> Ran:
        wanted = self.left.pop(0)
        self.budgets.append(program.seconds)
        took, late = min(wanted, program.seconds), wanted > program.seconds
        self.now += took
        code = -9 if late else 0
        return Ran(
            stdout=b"1", stderr=b"", code=code, timed_out=late, truncated=False, seconds=took
        )


@example(language="c", seconds=[6.0, 5.0], of_line=5.0, all_or_nothing=False)
@example(language="python", seconds=[5.0, 5.0], of_line=5.0, all_or_nothing=True)
@given(
    language=st.sampled_from(["c", "python"]),
    seconds=st.lists(st.sampled_from([4.0, 0.5, 1.0, 20.0]), min_size=2, max_size=6),
    of_line=st.sampled_from([5.0, 2.0]),
    all_or_nothing=st.booleans(),
)
def test_all_programs_of_an_answer_share_one_budget(
    language: str, seconds: list[float], of_line: float, all_or_nothing: bool
) -> None:
    """Building is one of them: each has what is left, and at most the line's seconds if it is a
    case."""
    timed, verdict_s = Timed(seconds), 10.0
    cases = seconds[1:] if language == "c" else seconds
    line = {
        "language": language,
        "cases": [{"input": "", "output": "1"}] * len(cases),
        "seconds": of_line,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_cases, "run", timed.run)
        patch.setattr(program_cases, "time", timed)
        verifier = CasesVerifier(Bubblewrap(), verdict_s, all_or_nothing=all_or_nothing)
        reward = verifier("", line)
    left, passed, given, built = SHARE * verdict_s, 0, list[float](), True
    if language == "c":
        given.append(left)
        built = seconds[0] <= left
        left -= min(seconds[0], left)
    for wanted in cases if built else []:
        right = False
        if left > 0:
            given.append(min(of_line, left))
            right = wanted <= given[-1]
            left -= min(wanted, given[-1])
        passed += right
        if all_or_nothing and not right:
            break
    assert timed.budgets == pytest.approx(given)
    assert timed.now - 100.0 <= SHARE * verdict_s + 1e-9
    assert reward == passed / len(cases)


# ----------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"language": "cobol"}, "no language is called 'cobol'; there are bash"),
        ({"cases": []}, "which reads `cases`, each with `input` and `output`, and it has prompt"),
        ({"cases": [{"input": "1"}]}, "case 0 has no input and output that are texts"),
        ({"cases": [{"input": 1, "output": "1"}]}, "case 0 has no input and output that are"),
        ({"cases": [7]}, "case 0 is no object"),
        ({"cases": 7}, "its cases are no list"),
        ({"cases": "x"}, "its cases are no JSON"),
        ({"cases": {"inputs": ["1"]}}, "its cases have no input and output"),
        ({"cases": {"inputs": ["1"], "outputs": []}}, "1 inputs and 0 outputs"),
        ({"cases": {"fn_name": "add", "inputs": [[1]], "outputs": [2]}}, "call a function (add)"),
        ({"cases": [{"input": "", "output": "", "testtype": "functional"}]}, "(functional)"),
        ({"seconds": 0}, "seconds"),
        ({"language": 7}, "language"),
    ],
)
def test_a_line_that_is_none_is_named_by_its_number(
    opened: Opened, line: dict[str, Any], said: str
) -> None:
    with pytest.raises(TaskError) as caught:
        opened({}, line)
    assert "data.jsonl, line 2: " in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        {"input_output": json.dumps({"inputs": ["1 2\n", "3"], "outputs": ["3\n", "4"]})},
        {"test_cases": [{"input": ["1 2", ""], "output": "3\n"}, {"input": "3", "output": ["4"]}]},
        {
            "public_test_cases": json.dumps(
                [
                    {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
                    {"input": "3", "expected_output": "4", "testtype": "stdin"},
                ]
            )
        },
        {
            "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["3"], "output": ["4"]},
        },
        {"reward_model": {"ground_truth": '{"inputs": ["1 2\\n", "3"], "outputs": ["3\\n", "4"]}'}},
        {
            "verification_info": json.dumps(
                {
                    "language": "python",
                    "test_cases": [
                        {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"},
                        {"type": "stdin_stdout", "input": "3", "output": "4"},
                    ],
                }
            )
        },
    ],
    ids=lambda line: next(iter(line)),
)
def test_cases_are_read_as_other_data_sets_have_them(line: dict[str, Any]) -> None:
    found = program_line({"prompt": "add", **line})
    assert found.language == "python" and found.seconds == 5.0
    assert found.cases == [ProgramCase("1 2\n", "3\n"), ProgramCase("3", "4")]


def test_a_language_without_its_tool_is_refused_by_name(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncrl.sandbox.programs import languages

    monkeypatch.setattr(languages, "_path_of", lambda tool: None)
    with pytest.raises(TaskError, match=r"line 1: .*python needs `python3`, which this machine"):
        opened({})


def test_a_line_may_name_it_and_need_have_no_answer(opened: Opened) -> None:
    task = opened({"verifier": "run"}, {"verifier": "exact", "answer": "x"}, verifier="exact")
    assert task.answer("train", 0) is None and task.answer("train", 1) == "x"
    assert task.languages == {"python"} and not task.executes
    with pytest.raises(TaskError, match="none of these is known as an answer"):
        opened({"verifier": "exact"})
    assert opened({"answer": "x"}, verifier="exact").languages == frozenset()


# -------------------------------------------------------------------------------------- verdicts


@needs_programs
@pytest.mark.processes
@pytest.mark.parametrize(
    ("answer", "score", "exact"),
    [
        (f"So:\n```python\n{RIGHT}\n```\nDone.", 1.0, 1.0),
        (RIGHT, 1.0, 1.0),
        ("print(3)", 1 / 3, 0.0),
        ("input()\nprint('7 ')\n", 1 / 3, 0.0),
        (RIGHT + "\nraise SystemExit(1)", 0.0, 0.0),
        ("this is no program", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_the_reward_is_the_share_of_cases_or_all_or_nothing(
    opened: Opened, answer: str, score: float, exact: float
) -> None:
    assert opened({}).verify("train", 0, answer) == pytest.approx(score)
    assert opened({}, reward="exact").verify("train", 0, answer) == exact


@needs_programs
@pytest.mark.processes
def test_a_language_that_is_built_is_built_once_and_run_for_each_case(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); '
        'printf("%d\\n", a + b); return 0; }'
    )
    started: list[tuple[str, ...]] = []
    start = Bubblewrap.start
    monkeypatch.setattr(
        Bubblewrap, "start", lambda self, one: (started.append(one.argv), start(self, one))[1]
    )
    task = opened({"language": "c"})
    assert task.verify("train", 0, f"```c\n{code}\n```") == 1.0
    assert len(started) == 4 and sum("gcc" in argv for argv in started) == 1
    assert task.verify("train", 0, code + "}") == 0.0


@needs_programs
@pytest.mark.processes
def test_a_program_that_hangs_fails_its_case_and_is_a_verdict(opened: Opened) -> None:
    """Its seconds come out of `task.verdict_s`, which no answer outlives."""
    hanging = "import time\nif input() != '1 2': time.sleep(1000)\nprint(3)"
    assert opened({"seconds": 1.0}).verify("train", 0, hanging) == pytest.approx(1 / 3)
    assert opened({}, verdict_s=2.0).verify("train", 0, hanging) == pytest.approx(1 / 3)
    exact = opened({"seconds": 1.0}, reward="exact")
    assert exact.verify("train", 0, "import time\ntime.sleep(1000)") == 0.0


@needs_programs
@pytest.mark.processes
def test_a_program_finds_no_expected_output_and_no_verdict_to_write(opened: Opened) -> None:
    searching = """
import os, sys
found = [sys.argv, dict(os.environ)]
for root, folders, files in os.walk("/tmp"):
    found += [open(os.path.join(root, name), errors="replace").read() for name in files]
for fd in range(3, 64):
    try: os.write(fd, b"1.0")
    except OSError: pass
expected = "765" + "4321"  # the source is not what is looked for
print(expected if expected in str(found) else "nothing")
"""
    secret, nothing = ({"cases": [{"input": "x", "output": out}]} for out in ("7654321", "nothing"))
    task = opened(secret, nothing)
    assert [task.verify("train", n, searching) for n in range(2)] == [0.0, 1.0]


def test_a_sandbox_that_cannot_be_started_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise ProgramError("there is no bwrap")

    monkeypatch.setattr(bubblewrap, "_executable", none)
    with pytest.raises(ProgramError, match="there is no bwrap"):
        CasesVerifier(Bubblewrap())(RIGHT, ADD)


@needs_programs
@pytest.mark.processes
async def test_verdicts_of_a_reward_actor(tmp_path: Path) -> None:
    config = task_of(tmp_path, {}, {"verifier": "exact", "answer": "x"})
    write_tokenizer(tmp_path)

    async def verdict(answer: str, prompt_index: int = 0) -> Verdict:
        ids = np.frombuffer(answer.encode(), np.uint8).astype("<i4").tobytes()
        return (await verifiers.judge("train", prompt_index, ids, "stop")).verdict

    async with open_verifiers(config, 0, str(tmp_path), Waits()) as verifiers:
        given = [await verdict(RIGHT), await verdict("print(7)"), await verdict("x", 1)]
    rewards = [one.reward if isinstance(one, Scored) else one for one in given]
    assert rewards == [1.0, pytest.approx(1 / 3), 1.0], given
    assert not any(isinstance(one, NoVerdict) for one in given)
