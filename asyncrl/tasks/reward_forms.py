"""Functions that judge answers, in the forms in which people have them. Invariant: inside, each is
a `Verifier`, a function of one answer and its line.

A form is told by the names of the parameters that must be given:

| form | of | called with |
|---|---|---|
| `(answer, line)` | this project | the answer, and the line as a dict |
| `(completion, answer)`, `(response, label)`, `(answer)` | scripts | texts |
| `(data_source, solution_str, ground_truth, extra_info)` | verl | texts, and what the line has |
| `(completions, prompts, **columns)` | TRL | lists of one, a list for each column of the line |

Names may be in any order. A function whose names say nothing is refused: called in the wrong form,
it would train a policy on a number that means nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, NamedTuple

from asyncrl.config.setting import nearest
from asyncrl.tasks import Figures, NoReward, wrong_figures
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.later import loop_of
from asyncrl.tasks.verifiers import NoAnswer, Verifier, shown

FORMS = (
    "(answer, line), (completion, answer), (answer), verl's (data_source, solution_str, "
    "ground_truth, extra_info), and TRL's (completions, **columns)"
)
"""The forms that work, for messages."""
_ROLES = {
    "response": (
        *("response", "completion", "output", "text", "prediction", "pred", "generation", "reply"),
        *("generated", "generated_text", "model_output", "model_response", "solution_str"),
    ),
    "line": ("line", "entry", "row", "example", "item", "sample", "record", "datapoint"),
    "label": (
        *("label", "ground_truth", "gold", "gold_answer", "target", "expected", "expected_answer"),
        *("reference", "reference_answer", "truth", "correct", "correct_answer", "gt", "solution"),
    ),
    "prompt": ("prompt", "question", "problem", "query"),
    "data_source": ("data_source",),
    "extra_info": ("extra_info",),
}
"""Names of parameters by what they are given. `answer` is the response, or the label beside one."""
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}
_ONE = {f"{name}s": role for name, role in _ROLE_OF.items() if role in ("response", "prompt")} | {
    "solution_strs": "response",
    "queries": "prompt",
    "ground_truths": "label",
    "labels": "label",
    "data_sources": "data_source",
    "extra_infos": "extra_info",
}
"""Names of parameters of a batch that are given a list, by what it holds."""
_BESIDE = {"completion_ids": "ids", "trainer_state": "nothing"}
"""Other parameters that TRL gives."""


class _Given(NamedTuple):
    """A parameter of a function, and what it is given: a role, or the column of its name."""

    name: str
    role: str
    by_position: bool
    required: bool


class OwnVerifier:
    """A function of a user's own, called in its own form.

    >>> def long_enough(completions, least, **columns):
    ...     return [float(len(text) >= most) for text, most in zip(completions, least)]
    >>> as_verifier(long_enough)(Answer("hello"), {"prompt": "Greet.", "least": 3})
    1.0
    """

    def __init__(
        self, function: Callable[..., Any], given: Sequence[_Given], *, batch: bool, rest: bool
    ) -> None:
        """`batch`: it is given lists of one, and returns one. `rest`: it takes all columns."""
        self.function = self.__wrapped__ = function  # which `inspect.unwrap` finds
        self._given = given
        self._batch, self._rest = batch, rest

    @property
    def rewards(self) -> Any:
        """The names of its rewards, as the function declares them."""
        return getattr(self.function, "rewards", None)

    @property
    def executes(self) -> Any:
        """True if the function declares that it executes answers."""
        return getattr(self.function, "executes", False)

    def __call__(self, answer: Answer, line: Mapping[str, Any]) -> Any:
        answer, positions, names = Answer.of(answer), list[Any](), dict[str, Any]()
        for one in self._given:
            if one.required or _has(one, line):
                value = self._value(one, answer, line)
                if one.by_position:
                    positions.append(value)
                else:
                    names[one.name] = value
        if self._rest:
            taken = {"prompt", "completion", *(one.name for one in self._given)}
            names |= {name: [value] for name, value in line.items() if name not in taken}
            for one in _ALWAYS:
                names.setdefault(one.name, self._value(one, answer, line))
        returned = self.function(*positions, **names)
        return self._read(returned) if loop_of(self) is None else self._awaited(returned)

    async def _awaited(self, returned: Awaitable[Any]) -> Any:
        return self._read(await returned)

    def _read(self, returned: Any) -> Any:
        returned = _only(returned) if self._batch else returned
        return returned if self.rewards else _score(returned)

    def check(self, line: Mapping[str, Any]) -> None:
        """Check that a line has what the function reads. Raises LookupError."""
        for one in self._given:
            if not one.required or _has(one, line):
                continue
            if one.role == "label":
                raise NoAnswer
            raise LookupError(
                f"its function reads {one.name!r}, which is not among the keys of the line; the "
                f"nearest is {nearest(one.name, line)!r}"
            )

    def _value(self, given: _Given, answer: Answer, line: Mapping[str, Any]) -> Any:
        """The value of a parameter: a list of one in a batch."""
        if given.role == "nothing":
            return None
        value = _one(given, answer, line)
        if self._batch and given.role == "response" and _conversation(line):
            value = [{"role": "assistant", "content": str(answer)}]
        return [value] if self._batch else value


_ALWAYS = (
    _Given("prompts", "prompt", by_position=False, required=True),
    _Given("completion_ids", "ids", by_position=False, required=True),
)
"""Parameters that TRL gives by name to each function that takes columns."""


def _has(given: _Given, line: Mapping[str, Any]) -> bool:
    """True if a line has what a parameter is given."""
    match given.role:
        case "label":
            return given.name in line or "answer" in line
        case "column":
            return given.name in line
        case _:
            return True


def _one(given: _Given, answer: Answer, line: Mapping[str, Any]) -> Any:
    """Return what a parameter is given for one answer. A number as a label becomes a text."""
    match given.role:
        case "response":
            return answer
        case "line":
            return line
        case "ids":
            return list(answer.ids)
        case "label":
            label = line[given.name] if given.name in line else line["answer"]
            return str(label) if isinstance(label, int | float) else label
        case role:
            return line[given.name] if given.name in line else line.get(role, _ABSENT.get(role, ""))


_ABSENT: Mapping[str, Any] = {"extra_info": {}}


def as_verifier(function: Callable[..., Any]) -> Verifier:
    """The verifier that a function is, told by the names of its parameters. Raises LookupError for
    one that cannot be told.

    >>> judge = as_verifier(lambda completion, answer: float(completion == answer))
    >>> judge(Answer("4"), {"answer": 4})
    1.0
    """
    refuse_async(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in function without a signature
        return function
    required = [one for one in parameters if one.default is Parameter.empty and _named(one)]
    names = {one.name for one in parameters if _named(one)}
    if any(one.kind is Parameter.VAR_POSITIONAL for one in parameters) and not required:
        return function
    rest = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    batch = bool(names & _ONE.keys())
    response = batch or bool(names & {*_ROLES["response"]})
    if "line" in map(_ROLE_OF.get, names) and not response and "answer" not in names:
        unnamed = [one.name for one in required if one.name not in _ROLE_OF]
    else:
        unnamed = []  # beside a line, one parameter without a name of its own is the answer
    given = [
        _Given(
            one.name,
            role,
            one.kind is Parameter.POSITIONAL_ONLY,
            one.default is Parameter.empty,
        )
        for one in parameters
        if _named(one)
        and (
            role := "response"
            if unnamed == [one.name]
            else _role(one.name, batch=batch, response=response)
        )
    ]
    known = {one.name for one in given}
    roles = [one.role for one in given if one.required]
    if unknown := [one.name for one in required if one.name not in known]:
        raise LookupError(
            f"its function takes {inspect.signature(function)}, and nothing says what "
            f"{shown(unknown[0])} is: give its parameters the names of one of the forms {FORMS}, "
            "or wrap it in a function that has them"
        )
    if "response" not in [one.role for one in given]:
        raise LookupError(
            f"its function takes {inspect.signature(function)}, and no answer: the forms that work "
            f"are {FORMS}"
        )
    if roles == ["response", "line"] and not batch and required == parameters[:2]:
        return function
    return OwnVerifier(function, given, batch=batch, rest=rest and batch)


def refuse_async(function: Callable[..., Any]) -> None:
    """Raise LookupError for an `async` function that executes answers: those have a process each,
    and answers that are waited for share one."""
    if loop_of(function) and getattr(function, "executes", False):
        raise LookupError("its function is async, and executes answers: make it `def`")


def _named(parameter: Parameter) -> bool:
    return parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _role(name: str, *, batch: bool, response: bool) -> str:
    """The role of a parameter; empty if its name does not say it."""
    plain = name.strip("_")
    if not plain:
        return "line"
    if batch:
        return _ONE.get(plain) or _BESIDE.get(plain) or "column"
    if plain == "answer":
        return "label" if response else "response"
    return _ROLE_OF.get(plain, "")


def _conversation(line: Mapping[str, Any]) -> bool:
    """True if the prompt of a line is a list of messages."""
    prompt = line.get("prompt")
    return isinstance(prompt, list) and all(isinstance(one, Mapping) for one in prompt)


def _only(returned: Any) -> Any:
    """The one reward in a batch of one."""
    try:
        rewards = list(returned)
    except TypeError:
        raise NoReward(
            f"not a number: {type(returned).__name__}, where a list of one reward is expected"
        ) from None
    if len(rewards) != 1:
        raise NoReward(f"not a number: a list of {len(rewards)} rewards, for one answer")
    return rewards[0]


def _score(returned: Any) -> Any:
    """The reward in what verl's functions return: a number, or a mapping with a `score`, whose
    other numbers are figures."""
    if not isinstance(returned, Mapping) or "score" not in returned:
        return returned
    figures = {
        name: float(value)
        for name, value in returned.items()
        if name != "score" and isinstance(value, int | float)
    }
    return returned["score"] if wrong_figures(figures) else Figures(returned["score"], figures)
