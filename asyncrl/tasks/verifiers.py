"""Verifiers of JSONL lines. Invariant: data never chooses code, and all answers to a line get the
same rewards by name.

A line may name a built-in verifier, or a function of the one module that `task.verifier` in
run.toml names; a module named by data alone is refused, so that a downloaded file cannot run what
it likes.

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
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from asyncrl.config.errors import ConfigError
from asyncrl.config.plugins import Registry
from asyncrl.tasks import NoReward, Several, TaskError

Verifier = Callable[[str, Mapping[str, Any]], Any]
"""`(answer, the line as a dict) -> reward`, or a mapping of rewards by name; may raise anything,
and take its time."""


def exact(answer: str, entry: Mapping[str, Any]) -> float:
    """1 where the answer is the expected text, up to white space at its ends."""
    return float(answer.strip() == str(entry["answer"]).strip())


def number(answer: str, entry: Mapping[str, Any]) -> float:
    """1 where the answer is a number equal to the expected one (`1,000` = `1e3` = `1000.0`)."""
    value = as_number(answer)
    return float(value is not None and value == as_number(str(entry["answer"])))


SHOWN = 100
"""Longest part of somebody else's names that a sentence has, in characters."""

VERIFIERS: Registry[Verifier] = Registry(
    "verifier", {"exact": exact, "number": number}, lambda found: ""
)
"""Verifiers that `task.verifier` may name."""


def as_number(text: str) -> Decimal | None:
    """The finite decimal number that `text` is, or None."""
    try:
        value = Decimal(text.strip().replace(",", "").replace("_", "x"))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def names(verifier: Verifier) -> tuple[str, ...]:
    """Names of the rewards that a verifier declares, in their order; none where it gives one
    number. Raises LookupError where it declares no sequence of different names."""
    said = getattr(verifier, "rewards", None)
    if said is None:
        return ()
    listed = (
        isinstance(said, Sequence)
        and not isinstance(said, str)
        and all(isinstance(name, str) and name.strip() for name in said)
    )
    if not listed or not said or len(set(said)) < len(said):
        raise LookupError(
            f"its function has rewards = {_shown(said)}, which must be different names, as in "
            "('right', 'brief')"
        )
    return tuple(said)


def rewarded(verifier: Verifier, returned: Any) -> Any:
    """Give the reward that a verifier returned; `Several` in their order where it declares names.
    Raises NoReward where it returned other names, and for a reward that is no number."""
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
    return Several({name: _number(name, returned[name]) for name in expected})


def _number(name: str, value: Any) -> float:
    """Raises NoReward for what is no number."""
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise NoReward(f"not a number: {type(value).__name__}, as {name}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


class VerifierTable:
    """Verifiers that lines may name. `default` is `task.verifier`; where it is `module:function`
    that module is imported now.

    >>> VerifierTable("exact").find("number")("1,000", {"answer": 1e3})
    1.0
    >>> VerifierTable("exact").find("os:system")
    Traceback (most recent call last):
    LookupError: 'os:system' names a module that run.toml does not: set task.verifier to a \
function of 'os' if you trust it, as its code would be run
    """

    def __init__(self, default: str) -> None:
        """Raises TaskError."""
        self._default = default
        self._module = default.partition(":")[0] if ":" in default else ""
        try:
            self.find("")
        except LookupError as error:
            raise TaskError(f"task.verifier: {error}") from error

    def find(self, name: str) -> Verifier:
        """The verifier of that name; of `task.verifier` where it is empty. Raises LookupError that
        says what is wrong with the name."""
        name = name or self._default
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
            raise LookupError(f"{name!r} is no module:function: give both")
        if colon and module != self._module:
            raise LookupError(
                f"{name!r} names a module that run.toml does not: set task.verifier to a "
                f"function of {module!r} if you trust it, "
                f"as its code would be run"
            )
        try:
            verifier = VERIFIERS.find(name)
        except ConfigError as error:
            raise LookupError(str(error).removesuffix(".")) from error
        if colon and (not callable(verifier) or getattr(verifier, "__module__", "") != module):
            raise LookupError(f"{module!r} defines no function {function!r}")
        names(verifier)
        return verifier
