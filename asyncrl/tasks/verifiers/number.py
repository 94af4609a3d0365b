"""The whole response is a number, equal to the expected one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.tasks.verifiers import BuiltIn, shown
from asyncrl.tasks.written_numbers import same_number


class Number(BuiltIn):
    """1 if the answer is a number equal to the expected one (`1,000` = `1e3` = `1000.0`); the forms
    are those of `written_numbers.py`.

    >>> Number()("1,000", {"answer": 1e3}), Number()("1000 apples", {"answer": 1000})
    (1.0, 0.0)
    """

    kind: ClassVar[str] = "number"

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        self.check(line)  # of a large data set not every line was
        return float(same_number(answer, line["answer"]))

    def check(self, line: Mapping[str, Any]) -> None:
        super().check(line)
        if not same_number(str(line["answer"]), line["answer"]):
            raise LookupError(
                f"its verifier is `{self.kind}` and its answer {shown(line['answer'])} is not a "
                "number, as `1234`, `1,234.5` or `1.2e3` are: write it as one, or name another "
                "verifier"
            )
