"""Answers that nine scorers of reasoning-gym would execute: an honest one is let through, a
program is not."""

from __future__ import annotations

import subprocess
import sys

import pytest
from some_values import some

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import open_task
from asyncrl.tasks.gym import EXECUTING
from asyncrl.tasks.screen import is_arithmetic, is_literal


@pytest.mark.parametrize(
    "text",
    [
        "['A', 'B']",
        "[[0, 1], [1, 0]]",
        " [1, 2]",
        "0 1\n1 0",
        "_ Q _\nQ _ _",
        "",
        "no answer",
        "3",
        "-1",
        "['a' 'b']",
    ],
)
def test_lists_and_what_is_no_program_are_let_through(text: str) -> None:
    assert is_literal(text)


@pytest.mark.parametrize(
    "text",
    [
        "oracle_answer",
        "entry['answer']",
        "exit()",
        "\nexit()",
        "\u00a0exit()",
        "\x0cexit()",
        "[x for x in ()]",
        "(lambda: 1)()",
        "''.join",
        "f'{exit()}'",
        "[1, 2][0]",
        "__import__('os')",
        "(x := 1)",
        "9**9**9",
        "[" * 150 + "exit()" + "]" * 150,
    ],
)
def test_programs_are_no_lists(text: str) -> None:
    assert not is_literal(text)


@pytest.mark.parametrize(
    "text",
    [
        "(5 + 1)*4",
        "24",
        "1/3 + 2**2 - 7",
        "x**2/2 + C",
        "-cos(x)*exp(2*x)/5",
        "log(Abs(x)) + sqrt(x + 1)",
        "3.5e2*y",
        "5! + 2",
        " x ",
        "alpha + beta_1",
        "(\n1 + 2\n)",
        "6*x**2 - 10*y",
        "2*(x + 1)",
        "sin(2*(x))",
    ],
)
def test_formulas_are_let_through(text: str) -> None:
    assert is_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    [
        "exit(0)",
        "exit (0)",
        "(exit)(0)",
        "(exit\n(0))",
        "exit\\\n(0)",
        "sympify(1)",
        "x.args",
        "1 .real",
        "[1][0]",
        "'x'",
        "f'x'",
        "lambda x: 1",
        "x if y else z",
        "x and y",
        "x == y",
        "x := 1",
        "__name__",
        "1 # x",
        "{1}",
        "x; y",
        "x(1)(2)",
        "5!(1)",
        "ｅｘｉｔ(0)",
        "max(1, key=exit)",
        "print @ x",
        "(1",
    ],
)
def test_programs_are_no_formulas(text: str) -> None:
    assert not is_arithmetic(text)


@pytest.mark.parametrize("name", some(sorted(EXECUTING)))
def test_right_answers_are_worth_what_the_scorer_says(name: str) -> None:
    """Screened or not, in each form that the scorer reads. An integral that is not done is an
    answer to no question, but to one whose own answer has it."""
    task = open_task(TaskConfig(name=name, train_size=8, eval_size=0, reward="score"), 0)
    for index in range(8):
        entry, answer = task.entry("train", index), task.answer("train", index)  # type: ignore[attr-defined]
        if "Integral" in (answer or ""):
            continue
        forms = [answer or "", f" {answer}", f"<answer>{answer}</answer>", "nonsense", ""]
        if EXECUTING[name] is is_literal:
            forms.append(str((answer or "").split()))
        scorer = task._data.score_answer  # type: ignore[attr-defined]
        for form in forms:
            marked = form.removeprefix("<answer>").removesuffix("</answer>")
            assert task.verify("train", index, form) == scorer(marked, entry), form


AUDIT = """
import sys
from asyncrl.tasks.gym_library import DATASETS, create_dataset

seen, scoring = set(), [""]
def hook(event, arguments):
    if event == "compile" and scoring[0] and b"zq_mark" in (arguments[0] or b""):
        seen.add(scoring[0])
sys.addaudithook(hook)
for name in sorted(DATASETS):
    if name == "composite":
        continue
    try:
        data = create_dataset(name, seed=1, size=2)
        entry = data[0]
    except Exception:
        print("skipped", name, file=sys.stderr)
        continue
    for answer in ("zq_mark", "[zq_mark]", "zq_mark + 1", "{'zq_mark': 1}", "zq_mark 1 2"):
        scoring[0] = name
        try:
            data.score_answer(answer, entry)
        except Exception:
            pass
        scoring[0] = ""
print()
print(*sorted(seen))
"""


@pytest.mark.slow
@pytest.mark.explore
def test_no_other_scorer_executes_answers() -> None:
    """Each data set is asked, and what Python compiles meanwhile is looked at."""
    done = subprocess.run([sys.executable, "-c", AUDIT], capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()[-1].split()) == set(EXECUTING), done.stderr
