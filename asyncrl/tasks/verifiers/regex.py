"""The response has a part that matches the line's pattern."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.tasks.final_answers import spoken
from asyncrl.tasks.verifiers import BuiltIn, shown

LENGTH = 10_000
"""Characters of a pattern, at most."""


class Regex(BuiltIn):
    """1 if the line's `pattern`, one of Python's, is found in the response; with `^` and `$` it is
    the whole. One that never comes to an end is no verdict after `task.verdict_s`.

    >>> Regex()("It was 1969.", {"pattern": r"\\\\b1969\\\\b".replace("\\\\\\\\", "\\\\")})
    1.0
    """

    kind: ClassVar[str] = "regex"
    compares: ClassVar[bool] = False

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        return float(re.search(line["pattern"], spoken(answer)) is not None)

    def check(self, line: Mapping[str, Any]) -> None:
        pattern = line.get("pattern")
        if not isinstance(pattern, str) or len(pattern) > LENGTH:
            raise LookupError(
                f"its verifier is `regex`, which reads the key `pattern`, a text of at most "
                f"{LENGTH:,} characters, and it has {shown(pattern)}"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of forms that a later Python may refuse
                re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise LookupError(
                f"its verifier is `regex`, and its pattern {shown(pattern)} is none of Python's: "
                f"{error}"
            ) from None
