"""Verifiers of JSONL lines. Invariant: data never chooses code, and all answers to a line get the
same rewards by name.

`task.verifier` in run.toml names a built-in verifier, or a function of a module. A line may name a
built-in one, the function that `task.verifier` names, and what its module offers to lines by a
mapping:

    VERIFIERS = {"half": half, "judge": judge}

A line says `"verifier": "mine:half"` then. Everything else is refused, so that a downloaded file
cannot run other code: neither another module, nor the rest of this one.

A function that executes answers as code declares it by an attribute: `judge.executes = True`. Then
each answer is judged in a fresh process of the sandbox `strict`.

`run` executes nothing: it starts answers as programs, each in a sandbox of its own
(`program_cases.py`).

A function that gives several rewards has their names in an attribute, and returns a mapping of all
of them:

    def judge(answer, line):
        return {"right": float(answer.strip() == line["answer"]), "brief": 0.2 * (len(answer) < 40)}

    judge.rewards = ("right", "brief")

The names are declared, and not taken from the first answer: answers are judged in many processes,
before and after a resume, and the rewards of a group are compared name by name. Another function
may have other names.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.config.errors import ConfigError
from asyncrl.config.plugins import Registry, reason
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.tasks import NoReward, Several, TaskError, as_number
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.judge_request import JudgeRequest, request_of
from asyncrl.tasks.later import Loop, loop_of
from asyncrl.tasks.program_cases import CasesVerifier
from asyncrl.tasks.written_numbers import same_number

Verifier = Callable[[Answer, Mapping[str, Any]], Any]
"""`(answer, the line as a dict) -> reward`, or a mapping of rewards by name; may raise anything
and be slow. The answer is a text that knows its `finish` and its length in `tokens`."""


def exact(answer: str, entry: Mapping[str, Any]) -> float:
    """1 if the answer is the expected text, up to white space at its ends and Unicode's equivalent
    forms. A JSON number with a fraction or an exponent has no text of its own: it is compared as a
    number (`4.0` = `4`), and an integer by its digits."""
    expected = entry["answer"]
    if isinstance(expected, float):
        return float(same_number(answer, expected))
    return float(_plain(answer) == _plain(str(expected)))


def number(answer: str, entry: Mapping[str, Any]) -> float:
    """1 if the answer is a number equal to the expected one (`1,000` = `1e3` = `1000.0`); the forms
    are those of `written_numbers.py`."""
    return float(same_number(answer, entry["answer"]))


def judge(answer: Answer, entry: Mapping[str, Any]) -> JudgeRequest:
    """The request to a judge on a server, which gives the reward (`asyncrl.judges`)."""
    return request_of(answer, entry)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


OFFERED = "VERIFIERS"
"""The name of the mapping in a module of the user's."""
SHOWN = 100
"""Characters of a user's names that an error quotes, at most."""

VERIFIERS: Registry[Verifier] = Registry(
    "verifier",
    {"exact": exact, "judge": judge, "number": number, "run": CasesVerifier(Bubblewrap())},
    lambda verifier: "",
)
"""Verifiers that `task.verifier` may name."""


def names(verifier: Verifier) -> tuple[str, ...]:
    """Names of the rewards that a verifier declares, in their order; none if it gives one
    number. Raises LookupError if it does not declare a sequence of different names."""
    declared = getattr(verifier, "rewards", None)
    if declared is None:
        return ()
    listed = (
        isinstance(declared, Sequence)
        and not isinstance(declared, str)
        and all(isinstance(name, str) and name.strip() for name in declared)
    )
    if not listed or not declared or len(set(declared)) < len(declared):
        raise LookupError(
            f"its function has rewards = {_shown(declared)}, which must be different names, as in "
            "('right', 'brief')"
        )
    return tuple(declared)


def rewarded(verifier: Verifier, returned: Any) -> Any:
    """Return the reward of a verifier, as `Several` in their order if it declares names.
    Raises NoReward if it returned other names, and for a reward that is no number,
    or too large a one."""
    expected = names(verifier)
    if not expected:
        if isinstance(returned, Mapping):
            raise NoReward(
                f"unnamed rewards: a verifier that returns {_shown(list(returned))} must have "
                "these names as its rewards"
            )
        return returned
    if not isinstance(returned, Mapping):
        raise NoReward(
            f"other rewards: a {type(returned).__name__} was returned, where {_shown(expected)} "
            "are its rewards"
        )
    if missing := [name for name in expected if name not in returned]:
        raise NoReward(f"other rewards: without {_shown(missing)}")
    if more := [name for name in returned if name not in expected]:
        raise NoReward(
            f"other rewards: {_shown(more)} among them, where {_shown(expected)} are its rewards"
        )
    return Several({name: as_number(returned[name], name) for name in expected})


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


class VerifierTable:
    """Verifiers that lines may name. `default` is `task.verifier`; if it is `module:function`
    that module is imported now.

    >>> VerifierTable("exact").find("number")("1,000", {"answer": 1e3})
    1.0
    >>> VerifierTable("exact").find("os:system")
    Traceback (most recent call last):
    LookupError: 'os:system' names a module that run.toml does not: set task.verifier to a \
function of 'os' if you trust it, as its code would be run
    """

    def __init__(self, default: str, run: CasesVerifier | None = None) -> None:
        """`run` is the verifier of that name, made from a task's settings. Raises TaskError."""
        self._default = default
        self._own = {"run": run} if run else {}
        self.languages: set[str] = set()
        """Languages of the lines that were checked whose answers are run as programs."""
        self.empty = 0
        """Lines that were checked whose expected answer, for `exact`, is empty."""
        self._module = default.partition(":")[0] if ":" in default else ""
        try:
            self._resolved = {default: _checked(default, self._of_settings(default))}
            self._offered = _offered(self._module) if self._module else {}
        except LookupError as error:
            raise TaskError(f"task.verifier: {error}") from error

    @property
    def executes(self) -> bool:
        """True if one of the verifiers that were looked up executes answers."""
        return any(getattr(verifier, "executes", False) for verifier in self._resolved.values())

    @property
    def loop(self) -> Loop | None:
        """The library under which the verifiers that were looked up and are `async` run; None if
        there are none. The first one's, where they differ."""
        return next(filter(None, map(loop_of, self._resolved.values())), None)

    @property
    def several(self) -> str:
        """The name of a verifier that was looked up and gives several rewards; empty if none
        does."""
        return next((name for name, verifier in self._resolved.items() if names(verifier)), "")

    def check(self, verifier: Verifier, line: Mapping[str, Any]) -> None:
        """Check that a line has what its verifier reads. Raises LookupError."""
        if isinstance(verifier, CasesVerifier):
            self.languages.add(verifier.language(line))
        elif verifier is judge:
            if self._default != "judge":
                raise LookupError(
                    "its verifier is `judge`, which costs requests to a server: only task.verifier "
                    "chooses it"
                )
        elif "answer" not in line:
            raise LookupError("Object missing required field `answer`")
        elif verifier is number and not same_number(str(line["answer"]), line["answer"]):
            raise LookupError(
                f"its verifier is `number` and its answer {line['answer']!r} is not a number, as "
                "`1234`, `1,234.5` or `1.2e3` are: write it as one, or name another verifier"
            )
        elif verifier is exact and not str(line["answer"]).strip():
            self.empty += 1

    def find(self, name: str) -> Verifier:
        """The verifier of a name in a line; an empty name is that of `task.verifier`. Raises
        LookupError, which says what is wrong with the name."""
        name = name or self._default
        if name not in self._resolved:
            self._resolved[name] = _checked(name, self._of_data(name))
        return self._resolved[name]

    def _of_settings(self, name: str) -> Verifier:
        module, colon, _ = _parts(name)
        try:
            verifier = self._own.get(name) or VERIFIERS.find(name)
        except ConfigError as error:
            raise LookupError(str(error).removesuffix(".")) from error
        if colon and getattr(verifier, "__module__", "") != module:
            raise LookupError(f"{module!r} defines no function {name.partition(':')[2]!r}")
        return verifier

    def _of_data(self, name: str) -> Verifier:
        module, colon, function = _parts(name)
        if not colon:
            return self._own.get(name) or VERIFIERS.find(name)
        if module != self._module:
            raise LookupError(
                f"{name!r} names a module that run.toml does not: set task.verifier to a "
                f"function of {module!r} if you trust it, "
                f"as its code would be run"
            )
        if function not in self._offered:
            raise LookupError(
                f"{module!r} does not offer {function!r} to lines: add it to the mapping "
                f"{OFFERED} in that module if a line may name it"
            )
        return self._offered[function]


def _parts(name: str) -> tuple[str, str, str]:
    """Module, colon and function of a name; the colon of a built-in one is empty. Raises
    LookupError."""
    module, colon, function = name.partition(":")
    if name not in VERIFIERS and not colon:
        close = difflib.get_close_matches(name, list(VERIFIERS), n=1)
        raise LookupError(
            f"no verifier is called {name!r}"
            + (
                f"; did you mean {close[0]!r}?"
                if close
                else f"; there are {', '.join(VERIFIERS)}, and module:function"
            )
        )
    if colon and (not module or not function):
        raise LookupError(f"{name!r} is not module:function: give both")
    return module, colon, function


def _offered(module: str) -> Mapping[str, Verifier]:
    """The functions that an imported module offers to lines. Raises LookupError if they are not
    in a mapping."""
    offered = getattr(sys.modules[module], OFFERED, {})
    if not isinstance(offered, Mapping):
        raise LookupError(
            f"{OFFERED} of {module!r} must be a mapping of names to functions, and is a "
            f"{type(offered).__name__}"
        )
    try:
        return dict(offered)
    except Exception as error:
        raise LookupError(
            f"{OFFERED} of {module!r} cannot be read ({reason(error)}): repair it"
        ) from error


def _checked(name: str, verifier: Any) -> Verifier:
    """Check a verifier. Raises LookupError if it is not a function, or its rewards are misnamed."""
    if not callable(verifier) or isinstance(verifier, type):
        module, _, function = name.partition(":")
        raise LookupError(f"{module!r} defines no function {function!r}")
    try:
        names(verifier)
        _ = getattr(verifier, "executes", False)
        _refuse_other_calls(verifier)
        _refuse_async(verifier)
    except LookupError:
        raise
    except Exception as error:  # an attribute of the user's object is code, too
        raise LookupError(
            f"its function cannot be looked at ({reason(error)}): repair it"
        ) from error
    right: Verifier = verifier
    return right


def _refuse_async(verifier: Callable[..., Any]) -> None:
    """Raise LookupError for an `async` function that executes answers: those have a process each,
    and answers that are waited for share one."""
    if loop_of(verifier) and getattr(verifier, "executes", False):
        raise LookupError("its function is async, and executes answers: make it `def`")


def _refuse_other_calls(verifier: Callable[..., Any]) -> None:
    """Raise LookupError for a function that cannot be called as a verifier is."""
    try:
        signature = inspect.signature(verifier)
    except (TypeError, ValueError):  # a built-in function without a signature
        return
    try:
        signature.bind("answer", {})
    except TypeError as error:
        raise LookupError(
            f"its function takes {signature}, and a verifier is called with two arguments, the "
            f"answer and its line ({error}): wrap it in one that does"
        ) from None
