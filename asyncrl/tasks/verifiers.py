"""Verifiers of JSONL lines. Invariant: data never chooses code.

A line may name a built-in verifier, or a function of the one module that `task.verifier` in run.toml names; a module named by data alone
is refused, so that a downloaded file cannot run what it likes.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from asyncrl.tasks import TaskError

Verifier = Callable[[str, Mapping[str, Any]], float]
"""`(answer, the line as a dict) -> reward`; may raise anything, and take its time."""


def exact(answer: str, entry: Mapping[str, Any]) -> float:
    """1 where the answer is the expected text, up to white space at its ends."""
    return float(answer.strip() == str(entry["answer"]).strip())


def number(answer: str, entry: Mapping[str, Any]) -> float:
    """1 where the answer is a number equal to the expected one (`1,000` = `1e3` = `1000.0`)."""
    value = as_number(answer)
    return float(value is not None and value == as_number(str(entry["answer"])))


BUILT_IN: dict[str, Verifier] = {"exact": exact, "number": number}


def as_number(text: str) -> Decimal | None:
    """The finite decimal number that `text` is, or None."""
    try:
        value = Decimal(text.strip().replace(",", "").replace("_", "x"))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


class Verifiers:
    """The verifiers that lines may name. `default` is `task.verifier`; where it is `module:function` that module is imported now."""

    def __init__(self, default: str) -> None:
        """Raises TaskError."""
        self._default = default
        self._module = default.partition(":")[0] if ":" in default else ""
        try:
            self.find("")
        except LookupError as error:
            raise TaskError(f"task.verifier: {error}") from error

    def find(self, name: str) -> Verifier:
        """The verifier of that name; of `task.verifier` where it is empty. Raises LookupError that says what is wrong with the name."""
        name = name or self._default
        if name in BUILT_IN:
            return BUILT_IN[name]
        module, colon, function = name.partition(":")
        if not colon:
            close = difflib.get_close_matches(name, BUILT_IN, n=1)
            raise LookupError(
                f"no verifier is called {name!r}"
                + (f"; did you mean {close[0]!r}?" if close else "; there are exact, number, and module:function")
            )
        if not module or not function:
            raise LookupError(f"{name!r} is no module:function: give both")
        if module != self._module:
            raise LookupError(
                f"{name!r} names a module that run.toml does not: set task.verifier to a function of {module!r} if you trust it, "
                f"as its code would be run"
            )
        try:
            found = getattr(importlib.import_module(module), function, None)
        except ImportError as error:
            raise LookupError(f"{module!r} cannot be imported ({error}); put its folder on PYTHONPATH") from error
        if not callable(found) or getattr(found, "__module__", None) != module:
            raise LookupError(f"{module!r} defines no function {function!r}")
        return found  # type: ignore[no-any-return]
