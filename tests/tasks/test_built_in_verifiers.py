"""The built-in verifiers, as a file of prompts names them."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import time
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.plugins import file_names
from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError, open_task
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.final_answers import last_boxed, last_number, plain_latex, same_final, value_of
from asyncrl.tasks.verifier_table import VERIFIERS, VerifierTable
from asyncrl.tasks.verifiers import BuiltIn
from asyncrl.tasks.verifiers.math import _nothing_missing

NEEDED = {"math": "math_verify", "json_schema": "jsonschema"}
BOUND_S = 3.0
"""Seconds for a hostile answer, on a machine with other work."""

Judge = Callable[[str, Any], float]


def judged(kind: str, answer: str, /, **line: Any) -> float:
    """The reward of an answer to a line that was checked."""
    if (package := NEEDED.get(kind)) and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    table = VerifierTable(kind)
    verifier = table.find("")
    table.check(verifier, line)
    reward: float = verifier(Answer(answer), line)
    return reward


def test_a_file_is_a_verifier_by_its_name() -> None:
    assert tuple(VERIFIERS) == file_names("tasks/verifiers")
    for name, verifier in VERIFIERS.all().items():
        assert isinstance(verifier, BuiltIn)
        assert type(verifier).__module__.rpartition(".")[2] == verifier.kind == name


# ------------------------------------------------------------------------------------------- boxed


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (r"so \boxed{42}", 42),
        (r"so \boxed{42}", "42"),
        (r"\boxed{1}. No: \boxed{2}", "2"),
        (r"\boxed{2} and then \boxed{3", "2"),
        (r"\fbox{2}", "2"),
        (r"\boxed 2", "2"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"$\boxed{\frac{1}{2}}$", r"\dfrac{1}{2}"),
        (r"\boxed{\frac12}", "1/2"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{-\frac{3}{4}}", -0.75),
        (r"\boxed{1,234}", "1234"),
        (r"\boxed{1{,}234}", "1234"),
        (r"\boxed{1\,234}", "1234"),
        (r"\boxed{\$5}", "5"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{90^\circ}", "90"),
        (r"\boxed{5\text{ cm}}", "5"),
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{\text{Yes}}", "yes"),
        (r"\boxed{\left( 1, 2 \right)}", "(1,2)"),
        (r"\boxed{\sqrt2}", r"\sqrt{2}"),
        (r"\boxed{x\le 2}", r"x\leq 2"),
        (r"\boxed{\{1, 2\}}", r"\{1,2\}"),
        (r"Is it \boxed{3}?</think>It is \boxed{4}.", "4"),
        (r"\boxed{4}", r"We have $2+2=\boxed{4}$."),
        (r"\boxed{ 3.50 }", "3.5"),
    ],
)
def test_the_last_box_is_compared_with_the_answer(answer: str, expected: Any) -> None:
    assert judged("boxed", answer, answer=expected) == 1.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "42"),
        (r"\boxed{42", "42"),
        (r"\boxed{}", "42"),
        (r"\boxed{42}, or \boxed{43}", "42"),
        (r"\boxed{42}</think>43", "42"),
        (r"\boxed{(1, 2)}", "[1, 2]"),
        (r"\boxed{x+1}", "x-1"),
        (r"\boxed{X}", "x"),
        (r"\boxed{12}", "1/2"),
        (r"\boxed{1,2}", "12"),
        (r"\boxed{\frac{1}{0}}", "0"),
        (r"\boxed{nan}", "5"),
        (r"\boxed{²}", "2"),
        (r"\boxed{$}", "$$"),
    ],
)
def test_another_box_or_none_is_wrong(answer: str, expected: Any) -> None:
    assert judged("boxed", answer, answer=expected) == 0.0


def reference_box(text: str) -> str | None:
    """The last box as the MATH data set's own code finds it: another parser."""
    at = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if at < 0:
        return None
    at = text.index("{", at)
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return text[at + 1 : place]
    return None


@given(st.lists(st.sampled_from(["\\boxed{", "\\fbox{", "{", "}", "1", " a", "\\frac", "\n"])))
def test_a_box_is_where_another_parser_finds_it(parts: list[str]) -> None:
    text = "".join(parts)
    if (expected := reference_box(text)) is not None:
        assert last_boxed(text) == expected


@given(st.text(alphabet="\\boxed{}$%^_frac12, .=x") | st.text())
def test_an_answer_is_itself_and_its_form_is_one(text: str) -> None:
    assert same_final(text, text)
    assert plain_latex(text) == plain_latex(f" ${text}$ ") or "$" in text or "\\" in text


@given(st.integers(-999, 999), st.integers(1, 999))
def test_a_fraction_has_the_value_that_arithmetic_says(above: int, below: int) -> None:
    value = Fraction(above, below)
    for form in (
        f"{above}/{below}",
        f"\\frac{{{above}}}{{{below}}}",
        f"\\dfrac{{{above}}}{{{below}}}",
    ):
        assert same_final(form, f"{value.numerator}/{value.denominator}")
        assert not same_final(form, f"{value.numerator + 1}/{value.denominator}")
    assert value_of(f"{above}/{below}") == value


# ------------------------------------------------------------------------------------- last_number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is 12.", "12"),
        ("12 apples and 3 pears", "3"),
        ("it costs $1,234.50 in total", "1,234.50"),
        ("so -5", "-5"),
        ("so \u22125", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("9-4", "4"),
        ("x-4", "4"),
        ("(-4)", "-4"),
        ("= -4", "-4"),
        ("3/4", "3/4"),
        ("on 12/25/2024", "2024"),
        ("1e3", "1e3"),
        ("2.5e-3 m", "2.5e-3"),
        (".5", ".5"),
        ("of 1, 2 and 3", "3"),
        ("1,2", "2"),
        ("version 1.2.3", "2.3"),
        ("5kg", "5"),
        ("x2 is 7 and y2", "7"),
        ("#### 1,000", "1,000"),
        ("50%", "50"),
        ("３４", "34"),
        ("x² and ٣", None),
        ("none, nan or inf", None),
        ("", None),
        ("7</think>8", "8"),
        ("$1{,}234$", "1,234"),
        (r"$1\,234$", "1234"),
        ("**-12**", "-12"),
    ],
)
def test_the_last_number_is_found_with_its_sign_and_form(text: str, found: str | None) -> None:
    assert last_number(text) == found
    if found is not None:
        assert judged("last_number", text, answer=found) == 1.0
        assert judged("last_number", text, answer=-12345) == 0.0


@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=3))
def test_a_number_in_words_is_found_again(value: Any) -> None:
    for text in (f"It is {value}.", f"Of 7, {value:,} are left!"):
        assert judged("last_number", text, answer=str(value)) == 1.0


# ------------------------------------------------------------------------------------------ choice


@pytest.mark.parametrize(
    "text",
    [
        "B",
        "b",
        "(B)",
        "B.",
        "B)",
        "**B**",
        "B. The red one",
        "(B) The red one",
        "The answer is B",
        "The answer is (B).",
        "the correct answer is **B**, because A is wrong",
        "Answer: B",
        "Answer: b",
        "**Answer:** B",
        "Final answer: $B$",
        r"The answer is $\boxed{B}$.",
        r"\boxed{\text{B}}",
        r"\boxed{\textbf{(B)} 5}",
        r"\boxed{B. 12}",
        "I would choose option B here",
        "A is too small and C too large.\nB",
        "A. no\nSo it is (B), I think.",
        "The answer is A. Wait, the answer is B.",
        "First A</think>B",
        "The answer should be: (b)",
        "(B) The red one\n\n(A) is no colour.\nThe rest is wrong, too.",
        "A. no\nB. yes\nC. no\n\nB",
        "Answer: (B) 5\nExplanation: option A is wrong because of C.",
        "Therefore, B is correct.",
        "**Final Answer**\n\n**(B)**",
        "I choose B",
        "So (B) is the right one.",
        "The best choice is B, not A.",
    ],
)
def test_a_letter_is_read_as_people_write_it(text: str) -> None:
    assert judged("choice", text, answer="B") == 1.0
    assert judged("choice", text, answer="(b)") == 1.0
    assert judged("choice", text, answer="C") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A or B",
        "It is a cat.",
        "The answer is not B",
        "The answer is a hard one",
        "Both of them",
        "42",
        "BB",
    ],
)
def test_what_names_no_letter_is_wrong(text: str) -> None:
    assert all(judged("choice", text, answer=letter) == 0.0 for letter in "ABCD")


# -------------------------------------------------------------------------------- other built-ins


def test_a_pattern_is_searched_for() -> None:
    assert judged("regex", "It was in 1969.", pattern=r"\b19\d\d\b") == 1.0
    assert judged("regex", "It was in 1869.", pattern=r"\b19\d\d\b") == 0.0
    assert judged("regex", "no\nYES\n", pattern=r"(?i)^yes$") == 0.0
    assert judged("regex", "no\nYES\n", pattern=r"(?im)^yes$") == 1.0
    assert judged("regex", "yes</think>no", pattern="yes") == 0.0


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ('{"name": "a", "age": 3}', 1.0),
        ('Here:\n```json\n{"name": "a", "age": 3}\n```\nDone.', 1.0),
        ('<think>{"x"}</think>{"name": "a", "age": 3}', 1.0),
        ('{"name": "a", "age": -3}', 0.0),
        ('{"name": "a"}', 0.0),
        ('{"name": "a", "age": NaN}', 0.0),
        ('{"name": "a", "age": true}', 0.0),
        ('{"name": "a", "age": 3,}', 0.0),
        ('It is {"name": "a", "age": 3}', 0.0),
        ("", 0.0),
    ],
)
def test_json_meets_the_schema_or_not(text: str, reward: float) -> None:
    assert judged("json_schema", text, schema=SCHEMA) == reward
    assert judged("json_schema", text, schema=json.dumps(SCHEMA)) == reward


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        (r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", 1.0),
        (r"\boxed{1 + x}", "x + 1", 1.0),
        (r"\boxed{(x+1)^2}", "x^2 + 2x + 1", 1.0),
        (r"\boxed{\frac{\sqrt{8}}{2}}", r"\sqrt{2}", 1.0),
        (r"\boxed{\{2, 1\}}", r"\{1, 2\}", 1.0),
        (r"\boxed{[0, 1)}", "[0,1)", 1.0),
        (r"\boxed{0.333}", r"\frac{1}{3}", 0.0),
        (r"\boxed{x + 2}", "x + 1", 0.0),
        (r"The final answer is $\frac{1}{2}$. I hope it is correct.", "0.5", 1.0),
        ("The answer is 12", 12, 1.0),
        ("The answer is 13", 12, 0.0),
        (r"\boxed{12}", "$12$", 1.0),
        ("", "1", 0.0),
        ("no idea", "1", 0.0),
    ],
)
def test_mathematics_is_compared_as_such(answer: str, expected: Any, reward: float) -> None:
    assert judged("math", answer, answer=expected) == reward


def test_mathematics_agrees_with_the_package_on_its_own_forms() -> None:
    """The package reads the whole response by itself; we pass it the last box."""
    library = pytest.importorskip("math_verify")
    forms = [r"\frac{3}{4}", "0.75", r"\frac{6}{8}", "3/4", r"\sqrt{16}", "4", r"2\cdot 2", "x+y"]
    for gold in forms:
        for given_form in forms:
            text = f"So it is $\\boxed{{{given_form}}}$."
            theirs = library.verify(library.parse(f"\\boxed{{{gold}}}"), library.parse(text))
            assert judged("math", text, answer=gold) == float(theirs), (gold, given_form)


def test_a_module_that_the_sandbox_lacks_is_no_verdict() -> None:
    """The package takes any error for a wrong answer: every answer was worth 0."""
    said = "no_such_module cannot be imported where answers are"
    lost = contextlib.suppress(ImportError)
    with pytest.raises(ImportError, match=said), _nothing_missing(), lost:
        importlib.import_module("sympy.no_such_module")
    with _nothing_missing(), contextlib.suppress(ImportError):
        importlib.import_module("of_another_package")


# --------------------------------------------------------------------------------- bad lines


@pytest.mark.parametrize(
    ("verifier", "line", "says"),
    [
        ("boxed", {}, "missing required field `answer`"),
        ("choice", {"answer": "the red one"}, "no letter from A to J"),
        ("choice", {"answer": 2}, "no letter from A to J"),
        ("last_number", {"answer": "twelve"}, "'twelve' is not a number"),
        ("regex", {}, "reads the key `pattern`"),
        ("regex", {"pattern": "(a"}, "is none of Python's: missing )"),
        ("regex", {"pattern": "(" * 5000}, "is none of Python's"),
        ("regex", {"pattern": 3}, "reads the key `pattern`"),
        ("json_schema", {}, "reads the key `schema`"),
        ("json_schema", {"schema": {"type": "objekt"}}, "its schema is none: 'objekt'"),
        ("json_schema", {"schema": "{"}, "its schema cannot be read"),
        ("json_schema", {"schema": 3}, "schema"),
        ("json_schema", {"schema": {"$ref": "http://localhost:1/a"}}, "would be fetched"),
        ("math", {"answer": " "}, "its answer is empty"),
    ],
)
def test_a_line_without_what_its_verifier_reads_is_named(
    tmp_path: Path, verifier: str, line: dict[str, Any], says: str
) -> None:
    if (package := NEEDED.get(verifier)) and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    path = tmp_path / "data.jsonl"
    good = {"prompt": "a", "answer": 1, "verifier": "number"}
    lines = [good, {"prompt": "b", "verifier": verifier, **line}]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(TaskError, match=f"line 2: .*{re.escape(says)}"):
        open_task(TaskConfig(name="jsonl", path=str(path), eval_size=0), 0)


@pytest.mark.parametrize("kind", sorted(NEEDED))
def test_a_package_that_is_missing_is_a_sentence(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = VERIFIERS.find(kind)
    assert isinstance(verifier, BuiltIn)
    monkeypatch.setattr(type(verifier), "package", "no_such_package")
    with pytest.raises(LookupError, match=rf"no-such-package is not installed: .*{verifier.extra}"):
        verifier.check({"answer": "1", "schema": {}})


@pytest.mark.parametrize("kind", ["number", "last_number", "choice", "regex", "boxed"])
def test_a_line_that_nobody_checked_is_no_zero(kind: str) -> None:
    """Of a large data set not every line is checked before a run."""
    verifier = VERIFIERS.find(kind)
    for line in [{}] if kind in ("regex", "boxed") else [{}, {"answer": "none of these"}]:
        with pytest.raises(LookupError):
            verifier(Answer("\\boxed{1}"), line)


# --------------------------------------------------------------------------------- hostile answers

SIZE = 100_000
HOSTILE = {
    "boxes": "\\boxed{" * (SIZE // 7),
    "closed boxes": "\\boxed{" * (SIZE // 14) + "}" * (SIZE // 14),
    "bare boxes": "\\boxed" + " " * SIZE,
    "braces": "{" * SIZE,
    "fractions": "\\boxed{" + "\\frac{1}{" * (SIZE // 9) + "}" * (SIZE // 9 + 1),
    "digits": "9" * SIZE,
    "boxed digits": f"\\boxed{{{'9' * SIZE}}}",
    "groups": "1" + ",234" * (SIZE // 4) + "5",
    "points": "1.2" * (SIZE // 3) + ".",
    "marks": ".," * (SIZE // 2),
    "signs": "-" * SIZE,
    "exponents": "1e" * (SIZE // 2),
    "slashes": "1/" * (SIZE // 2),
    "huge": "1e999999999",
    "boxed huge": r"\boxed{1e999999999}",
    "tower": r"\boxed{9^{9^{9^{9}}}}",
    "starred tower": "9**9**9**9",
    "factorial": r"\boxed{99999999!}",
    "division": r"\boxed{\frac{1}{0}}",
    "lists": "[" * SIZE,
    "objects": '{"a":' * (SIZE // 5),
    "fences": "```\n" * (SIZE // 4),
    "answers": "answer is " * (SIZE // 10),
    "spaced answer": "answer" + " " * SIZE + "B",
    "answer spaces": "answer \n" * (SIZE // 8),
    "letters": "(A" * (SIZE // 2),
    "lines": "A\n" * (SIZE // 2),
    "stars": "*" * SIZE,
    "thoughts": "</think>" * (SIZE // 8),
    "dollars": "$" * SIZE,
    "texts": "\\text{ " * (SIZE // 7),
    "boxed texts": "\\boxed{" + "\\text{ " * (SIZE // 7) + "}" * (SIZE // 7 + 1),
    "backslashes": "\\" * SIZE,
    "surrogate": "\\boxed{\ud800}",
    "other digits": "\\boxed{٣٤²}",
    "nan": "nan",
    "boxed inf": r"\boxed{\infty}",
    "true": "true",
    "nul": "\0",
    "empty": "",
}
LINES: dict[str, dict[str, Any]] = {
    "boxed": {"answer": "1/2"},
    "choice": {"answer": "B"},
    "exact": {"answer": 0.5},
    "json_schema": {
        "schema": {"$defs": {"l": {"items": {"$ref": "#/$defs/l"}}}, "$ref": "#/$defs/l"}
    },
    "last_number": {"answer": "0.5"},
    "math": {"answer": r"\frac{1}{2}"},
    "number": {"answer": "0.5"},
    "regex": {"pattern": r"\b0\.5\b"},
}


@pytest.mark.parametrize("kind", sorted(LINES))
def test_a_hostile_answer_is_wrong_within_a_bound(kind: str) -> None:
    slow = {}
    for name, text in HOSTILE.items():
        begun = time.perf_counter()
        reward = judged(kind, text, **LINES[kind])
        took = time.perf_counter() - begun
        if took > BOUND_S:
            slow[name] = took
        assert reward == 0.0 or (kind == "json_schema" and name in ("true", "digits")), name
    assert not slow


def test_every_kind_meets_hostile_answers() -> None:
    assert set(LINES) | {"run"} == set(VERIFIERS)
