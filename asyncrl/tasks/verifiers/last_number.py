"""The last number in the response is the expected one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.tasks.final_answers import last_number, same_value, spoken, value_of
from asyncrl.tasks.verifiers import BuiltIn, shown


class LastNumber(BuiltIn):
    """1 if the last number in the response equals the expected one; words and units around it do
    not matter.

    >>> LastNumber()("3 + 4 = 7, so it costs $1,007.00.", {"answer": "1007"})
    1.0
    >>> LastNumber()("First 12, and then none", {"answer": "7"})
    0.0
    """

    kind: ClassVar[str] = "last_number"

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        self.check(line)  # of a large data set not every line was
        found = last_number(spoken(answer))
        return float(found is not None and same_value(found, line["answer"]))

    def check(self, line: Mapping[str, Any]) -> None:
        super().check(line)
        if value_of(str(line["answer"])) is None:
            raise LookupError(
                f"its verifier is `{self.kind}` and its answer {shown(line['answer'])} is not a "
                "number, as `1234`, `1,234.5` or `3/4` are: write it as one, or name another "
                "verifier"
            )
