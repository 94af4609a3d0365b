"""Verifiers, and what each built-in one has in common. Invariant: a file here is a built-in
verifier by its name, and no list names it.

`task.verifier = "boxed"` is the class in `boxed.py` whose `kind` is that name. It says what it
reads of a line, which is checked for each line before a run starts, and gives 1 or 0. It ends
soon, or is ended by `task.verdict_s`, whatever the answer is: an answer is foreign text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from asyncrl.config.errors import installs
from asyncrl.tasks import Figures, NoReward, Several, as_number
from asyncrl.tasks.answer import Answer

Verifier = Callable[[Answer, Mapping[str, Any]], Any]
"""`(answer, the line as a dict) -> reward`, or a mapping of rewards by name; may raise anything
and be slow. The answer is a text that knows its `finish` and its length in `tokens`."""
SHOWN = 100
"""Characters of foreign names and values that an error quotes, at most."""


class NoAnswer(LookupError):
    """A line has no `answer`, which its verifier reads."""

    def __init__(self) -> None:
        super().__init__("Object missing required field `answer`")


class BuiltIn:
    """A built-in verifier, called `kind`. It needs the `package` of the extra `extra`, if it names
    one. It `compares` a response with the line's `answer`, unless it says otherwise.

    >>> class Short(BuiltIn):
    ...     kind = "short"
    ...
    ...     def __call__(self, answer, line):
    ...         return float(len(answer) < 9)
    >>> Short()("12", {}), Short().check({"answer": 12})
    (1.0, None)
    """

    kind: ClassVar[str] = ""
    compares: ClassVar[bool] = True
    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        """The reward of an answer to a line that was checked."""
        raise NotImplementedError

    def check(self, line: Mapping[str, Any]) -> None:
        """Check that a line has what this verifier reads, here an `answer`, and the machine its
        package. Raises LookupError with the end of a sentence about the line."""
        if "answer" not in line:
            raise NoAnswer
        self.refuse_missing()

    def refuse_missing(self) -> None:
        """Raise LookupError if its package is not installed."""
        if self.package and find_spec(self.package) is None:
            raise LookupError(
                f"its verifier is `{self.kind}`, and {self.package.replace('_', '-')} is not "
                f"installed: {installs(self.extra)}"
            )


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
            f"its function has rewards = {shown(declared)}, which must be different names, as in "
            "('right', 'brief')"
        )
    return tuple(declared)


def rewarded(verifier: Verifier, returned: Any) -> Any:
    """Return the reward of a verifier, as `Several` in their order if it declares names.
    Raises NoReward if it returned other names, and for a reward that is no number,
    or too large a one."""
    if isinstance(returned, Figures):
        return Figures(rewarded(verifier, returned.reward), returned.figures)
    expected = names(verifier)
    if not expected:
        if isinstance(returned, Mapping):
            raise NoReward(
                f"unnamed rewards: a verifier that returns {shown(list(returned))} must have "
                "these names as its rewards"
            )
        return returned
    if not isinstance(returned, Mapping):
        raise NoReward(
            f"other rewards: a {type(returned).__name__} was returned, where {shown(expected)} "
            "are its rewards"
        )
    if missing := [name for name in expected if name not in returned]:
        raise NoReward(f"other rewards: without {shown(missing)}")
    if more := [name for name in returned if name not in expected]:
        raise NoReward(
            f"other rewards: {shown(more)} among them, where {shown(expected)} are its rewards"
        )
    return Several({name: as_number(returned[name], name) for name in expected})


def shown(value: object) -> str:
    """A value for a sentence, cut."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
