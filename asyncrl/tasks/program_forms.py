"""Test cases of programs, as data sets have them. Pure. A new form is one entry of KEYS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from asyncrl.tasks.row_keys import keys_of, listed, value_at

KEYS = (
    ("cases",),
    ("input_output",),  # APPS, TACO
    ("test_cases",),
    ("tests",),
    ("verification_info.test_cases",),  # SYNTHETIC-1, open-r1
    ("public_test_cases",),  # LiveCodeBench
    ("public_tests", "private_tests", "generated_tests"),  # CodeContests
    ("reward_model.ground_truth",),  # PRIME
)
"""Keys of cases; of the first that a line has any of, all are read. A value is a list of objects
with input and output, or an object with a list of each, or the JSON of one of these."""
LANGUAGES = ("language", "verification_info.language")
"""Keys of the language; without one it is Python."""
INPUTS, OUTPUTS = ("input", "inputs"), ("output", "outputs", "expected_output")
CALLS = ("functional", "function_call")
"""Kinds of cases that call a function."""


def read_program_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """The language, cases and seconds of a line. Raises LookupError where it has no cases, or such
    that call a function of the program.

    >>> line = {"input_output": '{"inputs": ["1 2"], "outputs": ["3"]}'}
    >>> read_program_line(line)
    {'language': 'python', 'cases': [{'input': '1 2', 'output': '3'}]}
    """
    language = next(filter(None, (value_at(line, key) for key in LANGUAGES)), "python")
    for keys in KEYS:
        found = [value for key in keys if (value := value_at(line, key)) not in (None, "", [], {})]
        if found:
            cases = list(chain.from_iterable(map(_cases, found)))
            seconds = {"seconds": line["seconds"]} if "seconds" in line else {}
            return {"language": language, "cases": cases, **seconds}
    raise LookupError(
        "its verifier is `run`, which reads `cases`, each with `input` and `output`, and it has "
        f"{listed(keys_of(line))}"
    )


def _cases(value: Any) -> Iterator[dict[str, str]]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise LookupError("its verifier is `run`, and its cases are no JSON") from None
    if isinstance(value, Mapping):
        _refuse_calls(value.get("fn_name"))
        inputs, outputs = _of(value, INPUTS), _of(value, OUTPUTS)
        if not isinstance(inputs, list) or not isinstance(outputs, list):
            raise LookupError("its verifier is `run`, and its cases have no input and output")
        if len(inputs) != len(outputs):
            raise LookupError(
                f"its verifier is `run`, and its cases have {len(inputs)} inputs and "
                f"{len(outputs)} outputs"
            )
        value = [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]
    if not isinstance(value, list):
        raise LookupError("its verifier is `run`, and its cases are no list")
    for number, case in enumerate(value):
        if not isinstance(case, Mapping):
            raise LookupError(f"its verifier is `run`, and case {number} is no object")
        kind = case.get("testtype") or case.get("type")
        _refuse_calls(case.get("fn_name") or (kind in CALLS and kind))
        yield {name: _text(_of(case, names), number) for name, names in _SIDES}


_SIDES = (("input", INPUTS), ("output", OUTPUTS))


def _of(value: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value[name] for name in names if name in value), None)


def _refuse_calls(name: object) -> None:
    if name:
        raise LookupError(
            f"its verifier is `run`, and its cases call a function ({str(name)[:100]}): `run` "
            "judges programs by what they print for an input"
        )


def _text(value: Any, number: int) -> str:
    """The text of an input or an output, which some have as a list of lines."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    if isinstance(value, str):
        return value
    raise LookupError(
        f"its verifier is `run`, and case {number} has no input and output that are texts"
    )
